"""How many rows have about the same prediction and about the same measured score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.evaluate.metrics import METRICS
from deltacell.evaluate.paired import paired

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Density:
    """Counts of rows on a grid of predicted against measured.

    Parameters
    ----------
    predicted_edges, measured_edges
        Of the grid, [bins + 1].
    counts
        Rows in each field, [predicted bins, measured bins].
    outside
        Rows beyond the grid.
    pearson
        Over all rows; None where undefined.
    """

    predicted_edges: Doubles
    measured_edges: Doubles
    counts: Ints
    outside: int
    pearson: float | None


def density(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 60, cut: float = 0.001
) -> Density:
    """Count rows on a grid.

    Parameters
    ----------
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        Fields a side.
    cut
        The share of rows that may lie beyond each end, so that a few do not squeeze the others.
    """
    x, y = paired(predicted, measured)
    edges = [_edges(values, bins, cut) for values in (x, y)]
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    return Density(
        edges[0],
        edges[1],
        counts.astype(np.int64),
        len(x) - int(counts.sum()),
        METRICS["pearson"](x, y),
    )


def _edges(values: Doubles, bins: int, cut: float) -> Doubles:
    low, high = np.quantile(values, [cut, 1 - cut])
    if low == high:
        margin = max(abs(low), 1.0) * 0.01
        low, high = low - margin, high + margin
    return np.linspace(low, high, bins + 1)
