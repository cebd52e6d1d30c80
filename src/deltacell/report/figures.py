"""Figures of a training, and the files of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deltacell.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_learning(rows: Sequence[Mapping[str, float | None]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    plot_learning(rows, figure.add_subplot())
    write_figure(figure, path, dpi=120)


def plot_learning(rows: Sequence[Mapping[str, float | None]], axes: Axes | None = None) -> Axes:
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")[1]
    last = None
    for name, colour in (("train_loss", "#c1440e"), ("validation_pearson", "#2a6f97")):
        measured = [row for row in rows if row.get(name) is not None]
        if measured:
            last = axes if last is None else axes.twinx()
            epochs, values = ([float(row[key] or 0) for row in measured] for key in ("epoch", name))
            last.plot(epochs, values, ".-", color=colour, linewidth=1, markersize=4)
            last.set_ylabel(name.replace("_", " "), color=colour)
    axes.set_xlabel("epoch")
    return axes


def draw_scores(
    measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64], path: Path
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    plot_scores(figure.add_subplot(), measured, predicted)
    write_figure(figure, path, dpi=120)


def plot_scores(
    axes: Any, measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]
) -> None:
    shown = axes.hexbin(measured, predicted, gridsize=50, bins="log", cmap="viridis_r", mincnt=1)
    axes.figure.colorbar(shown, ax=axes, label="genotypes")
    axes.axline((0.0, 0.0), slope=1, color="#8a8a8a", linestyle=":", linewidth=1)
    axes.set(xlabel="measured", ylabel="predicted")
