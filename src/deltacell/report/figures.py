"""Figures of a training run, and writing figures to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy.typing as npt

from deltacell.base.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def drawn(
    path: Path,
    width: float,
    height: float,
    *,
    title: str | None = None,
    dpi: int = 120,
) -> Iterator[Axes]:
    """Yield the axes of a new figure, which is written on exit."""
    # A Figure without pyplot is drawn by Agg and leaves the user's pyplot state alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    yield axes
    if title is not None:
        # Names of predictors and relations come from users and are not formulas.
        figure.suptitle(title, fontsize=11, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
    write_figure(figure, path, dpi=dpi)


def plot_learning(rows: Sequence[Mapping[str, float | None]], axes: Axes | None = None) -> Axes:
    """Plot the training loss and the validation metric by epoch, each with its own axis.

    A row has the metrics of an epoch; what no row has is left out.
    """
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")[1]
    last = None
    for name, colour in (("train_loss", "#c1440e"), ("validation_pearson", "#2a6f97")):
        measured = [row for row in rows if row.get(name) is not None]
        if measured:
            last = axes if last is None else axes.twinx()
            epochs = [float(row["epoch"] or 0) for row in measured]
            values = [float(row[name] or 0) for row in measured]
            last.plot(epochs, values, ".-", color=colour, linewidth=1, markersize=4)
            last.set_ylabel(name.replace("_", " "), color=colour)
    axes.set_xlabel("epoch")
    return axes


def plot_scores(axes: Axes, measured: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
    """Plot how many genotypes have which measured and predicted scores, both [genotypes]."""
    counts = axes.hexbin(measured, predicted, gridsize=50, bins="log", cmap="viridis_r", mincnt=1)
    axes.figure.colorbar(counts, ax=axes, label="genotypes")
    axes.axline((0.0, 0.0), slope=1, color="#8a8a8a", linestyle=":", linewidth=1)
    axes.set(xlabel="measured", ylabel="predicted")
