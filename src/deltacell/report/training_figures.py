"""Figures of a training, drawn from what was measured; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deltacell.files import write_figure


def draw_learning(rows: Sequence[Mapping[str, float | None]], path: Path) -> None:
    """Draw the training loss and the validation's Pearson by epoch.

    Parameters
    ----------
    rows
        Of ``metrics.csv``.
    path
        The figure, PNG or SVG by its name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    for axes, name, colour in (
        (left, "train_loss", "#c1440e"),
        (right, "validation_pearson", "#2a6f97"),
    ):
        measured = [row for row in rows if row.get(name) is not None]
        epochs, values = ([float(row[key] or 0) for row in measured] for key in ("epoch", name))
        axes.plot(epochs, values, ".-", color=colour)
        axes.set_ylabel(name.replace("_", " "), color=colour)
    left.set_xlabel("epoch")
    write_figure(figure, path, dpi=120)


def draw_scores(
    measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64], path: Path
) -> None:
    """Draw predicted against measured scores, the darker the more of them.

    Parameters
    ----------
    measured, predicted
        One number a genotype.
    path
        The figure, PNG or SVG by its name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.hexbin(measured, predicted, gridsize=50, bins="log", cmap="viridis_r", mincnt=1)
    figure.colorbar(shown, ax=axes, label="genotypes")
    axes.set_xlabel("measured")
    axes.set_ylabel("predicted")
    write_figure(figure, path, dpi=120)
