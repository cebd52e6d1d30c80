"""The figures of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deltacell.base.errors import InputError
from deltacell.base.rendering import Values
from deltacell.report.figures import drawn, plot_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from deltacell.evaluation.figure_values import (
        CalibrationBins,
        PredictorFigures,
        ResidualBins,
    )

_BLUE = "#2a6f97"
_ORANGE = "#c1440e"
_GREY = "#8a8a8a"

#: By predictor: names of relations, and their weights [genes, relations].
RelationWeightsOf = Mapping[str, tuple[Sequence[str], npt.ArrayLike]]


def draw_evaluation(
    predictors: Iterable[PredictorFigures],
    folder: Path,
    weights: RelationWeightsOf | None = None,
) -> list[Path]:
    """Draw the figures of each predictor into a folder, and return their paths.

    They are ``NAME-predicted.png``, ``NAME-calibration.png`` and ``NAME-residual.png``, and
    ``NAME-relations.png`` for names of relations and weights [genes, relations].
    """
    figures = _Figures(folder)
    for predictor in predictors:
        name = predictor.name
        with figures.new(name, "predicted", "predicted and measured", (5.6, 4.6)) as axes:
            plot_scores(axes, predictor.measured, predictor.predicted)
        with figures.new(name, "calibration", "calibration", (4.8, 4.4)) as axes:
            _plot_calibration(axes, predictor.calibration)
        with figures.new(name, "residual", "residual by gene degree", (5.6, 4.0)) as axes:
            _plot_residuals(axes, predictor.residuals)
    for name, (relations, values) in (weights or {}).items():
        size = (6.0, 0.35 * len(relations) + 1.4)
        with figures.new(name, "relations", "weight of each relation", size) as axes:
            _plot_relations(axes, relations, values)
    return figures.paths


class _Figures:
    """The figures in one folder, no two of which may have one path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def new(
        self,
        name: str,
        kind: str,
        title: str,
        size: tuple[float, float],
    ) -> AbstractContextManager[Axes]:
        """Return the axes of a new figure of a predictor, which is written on exit."""
        # The name of a predictor must not lead out of the folder.
        safe_name = re.sub(r"[^\w.-]+", "_", name).strip(".") or "predictor"
        path = self.folder / f"{safe_name}-{kind}.png"
        if path in self.paths:
            message = f"two predictors would share the figure {path.name}; rename '{name}'"
            raise InputError(message, code="same-name")
        self.paths.append(path)
        return drawn(path, *size, title=f"{name}: {title}", dpi=150)


def slope_text(calibration: CalibrationBins) -> str:
    """Return the slope of measured on predicted scores, or why there is none."""
    if calibration.slope is not None:
        return f"slope {calibration.slope:.2f}"
    share = calibration.deviation_share
    return f"no slope: the deviation of the predictions is\n{share:.2%} of the measured one"


def _plot_calibration(axes: Axes, calibration: CalibrationBins) -> None:
    axes.errorbar(
        calibration.predicted,
        calibration.measured,
        yerr=calibration.standard_error,
        label="mean of a bin and its standard error",
        fmt="o",
        color=_BLUE,
        capsize=3,
    )
    axes.axline(
        (0.0, 0.0),
        slope=1,
        color=_GREY,
        linestyle=":",
        linewidth=1,
        label="calibrated",
    )
    axes.set_title(slope_text(calibration), fontsize=9, loc="left")
    axes.set(xlabel="mean predicted score", ylabel="mean measured score")
    axes.locator_params(axis="x", nbins=5)
    axes.legend(fontsize=8, frameon=False)


def _plot_residuals(axes: Axes, residuals: ResidualBins) -> None:
    degree = residuals.degree
    axes.fill_between(
        degree,
        residuals.lower_quartile,
        residuals.upper_quartile,
        color=_BLUE,
        alpha=0.2,
        label="quartiles",
    )
    axes.plot(degree, residuals.mean, "o-", color=_BLUE, label="mean")
    axes.plot(degree, residuals.root_mean_square, "s--", color=_ORANGE, label="root mean square")
    axes.axhline(0, color=_GREY, linewidth=1)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="edges of a deleted gene, over all relations")
    axes.set(ylabel="measured - predicted")
    axes.legend(fontsize=8, frameon=False)


def _plot_relations(axes: Axes, relations: Sequence[str], values: npt.ArrayLike) -> None:
    weights = np.asarray(values, dtype=np.float64)
    places = np.arange(len(relations))
    axes.barh(places, weights.mean(axis=0), color=_BLUE)
    axes.set_yticks(places, relations, parse_math=False)
    axes.invert_yaxis()
    lower, upper = np.quantile(weights, [0.25, 0.75], axis=0)
    axes.hlines(places, lower, upper, color="black", linewidth=1.5)
    axes.set_xlabel(f"weight: mean and quartiles over {len(weights):,} genes")


def plot_metric(result: Values, metric: str, axes: Axes | None = None) -> Axes:
    """Plot a metric of each predictor on the test part, from `Evaluation.to_json`."""
    scores = result["groups"][0]["scores"]
    names = [name for name in scores if scores[name][metric]["value"] is not None]
    if axes is None:
        from matplotlib import pyplot

        size = (6.0, 0.4 * len(names) + 1.2)
        axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    for place, name in enumerate(names):
        estimate = scores[name][metric]
        if estimate["low"] is not None:
            interval = [estimate["low"], estimate["high"]]
            axes.plot(interval, [place, place], color=_GREY, linewidth=2)
        axes.plot([estimate["value"]], [place], "o", color=_BLUE)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(f"{result['metrics'][metric]['title']} on test, with its interval")
    axes.spines[["top", "right"]].set_visible(False)
    return axes
