"""Whether rows with a prediction were, on average, measured to have it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.evaluate.paired import paired

Doubles = npt.NDArray[np.float64]

NEXT_TO_NOTHING = 0.01
"""Predictions whose deviation is a smaller share of the measured one count as constant."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows in bins of about equally many, by their prediction.

    Parameters
    ----------
    predicted, measured
        The means of each bin, [bins].
    error
        The standard error of each mean that was measured; NaN in a bin of one row.
    rows
        In each bin.
    slope
        Of the line of least squares through measured against predicted: 1 where calibrated, below
        1 where predictions are spread too wide. None where `is_constant`.
    spread
        The deviation of the predictions by that of what was measured; None where the latter is 0.
    """

    predicted: Doubles
    measured: Doubles
    error: Doubles
    rows: Ints
    slope: float | None
    spread: float | None

    @property
    def is_constant(self) -> bool:
        """Whether the predictions are all the same, or next to it, so that a slope says nothing."""
        return self.slope is None


def calibration(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 10
) -> Calibration:
    """Compare predictions with what was measured, bin by bin.

    Rows with the same prediction are in the same bin, so there may be fewer bins than asked for.

    Parameters
    ----------
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        About how many.
    """
    x, y = paired(predicted, measured)
    inner = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1)[1:-1]))
    at = np.searchsorted(inner, x, side="right")
    n = np.bincount(at, minlength=bins)
    filled = n > 0
    n_filled = n[filled]
    mean_x, mean_y = (np.bincount(at, v, bins)[filled] / n_filled for v in (x, y))
    full_mean = np.zeros(bins)
    full_mean[filled] = mean_y
    squares = np.bincount(at, (y - full_mean[at]) ** 2, bins)[filled]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares / (n_filled - 1) / n_filled)
    centred = x - x.mean()
    squared = float(centred @ centred)
    spread = float(x.std() / y.std()) if y.std() > 0 else None
    varies = np.ptp(x) > 0 and (spread is None or spread >= NEXT_TO_NOTHING)
    slope = float(centred @ y / squared) if varies else None
    return Calibration(mean_x, mean_y, error, n_filled, slope, spread)
