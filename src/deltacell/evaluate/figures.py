"""The figures of an evaluation, drawn from what `diagnostics` computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.diagnostics import (
    Calibration,
    Density,
    RelationWeights,
    ResidualByDegree,
    calibration,
    density,
    residual_by_degree,
)
from deltacell.evaluate.metrics import CONSTANT
from deltacell.evaluate.side_by_side import check_fit
from deltacell.files import write_figure
from deltacell.report.figures import check_figure
from deltacell.screen import Screen, Split
from deltacell.words import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROUNDING = 1e-6
_BLUE, _ORANGE, _GREY = "#2a6f97", "#c1440e", "#8a8a8a"


def draw_figures(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Mapping[str, npt.ArrayLike],
    folder: Path,
    *,
    weights: Mapping[str, RelationWeights] | None = None,
    suffix: str = ".png",
) -> list[Path]:
    """Draw the figures of each predictor on the test part, and return where they are.

    ``NAME-predicted``, ``NAME-calibration`` and ``NAME-residual``; and ``NAME-relations`` where
    weights were given.
    """
    check_fit(cell, screen, split)
    check_figure(folder / f"figure{suffix}")
    measured = screen.column("score").astype(np.float64)[split.test]
    genotypes = screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    drawn: list[Path] = []

    def path(name: str, what: str) -> Path:
        # The name of a predictor cannot leave the folder.
        safe = re.sub(r"[^\w.-]+", "_", name).strip(".") or "predictor"
        made = folder / f"{safe}-{what}{suffix}"
        if made in drawn:
            raise InputError(
                f"two predictors would share the figure {made.name}; rename '{name}'",
                code="same-name",
            )
        drawn.append(made)
        return made

    for name, given in predictions.items():
        predicted = np.asarray(given, dtype=np.float64)
        grid, bins = density(predicted, measured), calibration(predicted, measured)
        residuals = residual_by_degree(cell, genotypes, predicted, measured)
        draw_density(grid, path(name, "predicted"), f"{name}: predicted and measured")
        draw_calibration(bins, path(name, "calibration"), f"{name}: calibration")
        draw_residuals(residuals, path(name, "residual"), f"{name}: residual by gene degree")
    for name, weight in (weights or {}).items():
        draw_relation_weights(weight, path(name, "relations"), f"{name}: weight of each relation")
    return drawn


def draw_density(data: Density, path: Path, title: str = "") -> None:
    """Draw predicted against measured, the darker the more rows, as PNG or SVG."""

    def draw(figure: Figure, axes: Axes) -> None:
        from matplotlib.colors import LogNorm

        mesh = axes.pcolormesh(
            data.measured_edges,
            data.predicted_edges,
            np.ma.masked_equal(data.counts, 0),
            norm=LogNorm(vmin=1, vmax=max(int(data.counts.max()), 2)),
            cmap="viridis_r",
            rasterized=True,
        )
        figure.colorbar(mesh, ax=axes, label="rows")
        axes.axline((0.0, 0.0), slope=1, color=_GREY, linestyle=":", linewidth=1)
        axes.set_xlim(data.measured_edges[0], data.measured_edges[-1])
        axes.set_ylim(data.predicted_edges[0], data.predicted_edges[-1])
        said = [] if data.pearson is None else [f"Pearson {data.pearson:.3f}"]
        said += [f"{count_text(data.outside, 'row')} beyond the frame"] if data.outside else []
        axes.set_title(", ".join(said), fontsize=9, loc="left")
        axes.set_xlabel("measured score")
        axes.set_ylabel("predicted score")

    _draw(draw, path, title or "Predicted against measured", (5.6, 4.6))


def draw_calibration(data: Calibration, path: Path, title: str = "") -> None:
    """Draw the mean that was measured against the mean predicted, bin by bin."""

    def draw(figure: Figure, axes: Axes) -> None:
        axes.errorbar(
            data.predicted,
            data.measured,
            yerr=np.nan_to_num(data.error),
            fmt="o",
            color=_BLUE,
            capsize=3,
            label="mean of a bin and its standard error",
        )
        axes.axline(
            (0.0, 0.0), slope=1, color=_GREY, linestyle=":", linewidth=1, label="calibrated"
        )
        axes.set_title(_slope_text(data), fontsize=9, loc="left")
        axes.set_xlabel("mean predicted score")
        axes.locator_params(axis="x", nbins=5)
        axes.set_ylabel("mean measured score")
        axes.legend(fontsize=8, frameon=False)

    _draw(draw, path, title or "Calibration", (4.8, 4.4))


def draw_residuals(data: ResidualByDegree, path: Path, title: str = "") -> None:
    """Draw the residual against the degree of the deleted genes."""

    def draw(figure: Figure, axes: Axes) -> None:
        axes.fill_between(
            data.degree, data.low, data.high, color=_BLUE, alpha=0.2, label="quartiles"
        )
        axes.plot(data.degree, data.mean, "o-", color=_BLUE, label="mean")
        axes.plot(data.degree, data.rms, "s--", color=_ORANGE, label="root mean square")
        axes.axhline(0, color=_GREY, linewidth=1)
        axes.set_xscale("symlog", linthresh=1)
        shown = data.degree[np.unique(np.linspace(0, len(data.degree) - 1, 4).astype(int))]
        axes.set_xticks(shown, [f"{degree:,.0f}" for degree in shown])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("edges of a deleted gene, over all relations")
        axes.set_ylabel("measured - predicted")
        axes.legend(fontsize=8, frameon=False)

    _draw(draw, path, title or "Residual by gene degree", (5.6, 4.0))


def draw_relation_weights(data: RelationWeights, path: Path, title: str = "") -> None:
    """Draw the weight of each relation as a bar."""

    def draw(figure: Figure, axes: Axes) -> None:
        y = np.arange(len(data.names))
        axes.barh(y, data.mean, color=_BLUE)
        axes.set_yticks(y, data.names, parse_math=False)
        axes.invert_yaxis()
        if data.genes > 1:
            axes.hlines(y, data.low, data.high, color="black", linewidth=1.5)
            axes.set_xlabel(f"weight: mean and quartiles over {data.genes:,} genes")
        else:
            axes.set_xlabel("weight")

    _draw(draw, path, title or "Weight of each relation", (6.0, 0.35 * len(data.names) + 1.4))


def plot_metric(result: Mapping[str, Any], metric: str, axes: Axes | None = None) -> Axes:
    """Plot a metric of each predictor of `Evaluation.to_json` with its interval."""
    scores = result["groups"][0]["scores"]
    names = [name for name in scores if scores[name][metric]["value"] is not None]
    if axes is None:
        from matplotlib import pyplot

        size = (6.0, 0.4 * len(names) + 1.2)
        axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    for place, name in enumerate(names):
        one = scores[name][metric]
        if one["low"] is not None:
            axes.plot([one["low"], one["high"]], [place, place], color=_GREY, linewidth=2)
        axes.plot([one["value"]], [place], "o", color=_BLUE)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(f"{result['metrics'][metric]['title']} on test, with its interval")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _draw(
    draw: Callable[[Figure, Axes], None], path: Path, title: str, size: tuple[float, float]
) -> None:
    # A Figure of its own is drawn by Agg or as SVG and leaves the user's pyplot alone.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    check_figure(path)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    draw(figure, axes)
    # What a user called a predictor or a relation is text and no formula.
    figure.suptitle(title, fontsize=11, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    # Without a date and with settled names, so that the same result is the same file.
    dateless = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "deltacell"}):
            write_figure(figure, path, dpi=150, metadata=dateless)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", code="unwritable", where=path
        ) from error


def _slope_text(data: Calibration) -> str:
    if data.slope is not None:
        return f"slope {data.slope:.2f}"
    if data.spread is None or data.spread < _ROUNDING:
        return CONSTANT
    return (
        "the predictions are all but the same: their deviation is\n"
        f"{100 * data.spread:.2g} % of that measured, so there is no slope"
    )
