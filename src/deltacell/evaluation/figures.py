"""The figures of an evaluation, and the numbers they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.evaluation.evaluation import check_fit
from deltacell.report.figures import drawn, plot_scores
from deltacell.screen import Genotypes, Screen, Split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONSTANT_BELOW = 0.01  # the deviation of constant predictions, as a share of the measured one
_BLUE, _ORANGE, _GREY = "#2a6f97", "#c1440e", "#8a8a8a"


def draw_figures(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Mapping[str, npt.ArrayLike],
    folder: Path,
    *,
    weights: Mapping[str, tuple[Sequence[str], npt.ArrayLike]] | None = None,
) -> list[Path]:
    """Draw the figures of each predictor on the test part, and return their paths.

    They are ``NAME-predicted.png``, ``NAME-calibration.png`` and ``NAME-residual.png``, and
    ``NAME-relations.png`` for names of relations and weights [genes, relations].
    """
    check_fit(cell, screen, split)
    score = screen.column("score").astype(np.float64)[split.test]
    known = np.isfinite(score)
    if not known.any():
        raise InputError("no test row has a measured score", code="no-scores")
    measured = score[known]
    genotypes = screen.genotypes.take(torch.from_numpy(split.test[known]))
    paths: list[Path] = []

    def figure(name: str, what: str, title: str, *size: float) -> AbstractContextManager[Any]:
        # The name of a predictor must not lead out of the folder.
        safe = re.sub(r"[^\w.-]+", "_", name).strip(".") or "predictor"
        paths.append(folder / f"{safe}-{what}.png")
        if paths[-1] in paths[:-1]:
            what = f"two predictors would share the figure {paths[-1].name}; rename '{name}'"
            raise InputError(what, code="same-name")
        return drawn(paths[-1], *size, title=f"{name}: {title}", dpi=150)

    for name, values in predictions.items():
        predicted = np.asarray(values, dtype=np.float64)[known]
        with figure(name, "predicted", "predicted and measured", 5.6, 4.6) as axes:
            plot_scores(axes, measured, predicted)
        with figure(name, "calibration", "calibration", 4.8, 4.4) as axes:
            (x, y, errors), said = calibration(predicted, measured)
            label = "mean of a bin and its standard error"
            axes.errorbar(x, y, yerr=errors, label=label, fmt="o", color=_BLUE, capsize=3)
            dotted = {"color": _GREY, "linestyle": ":", "linewidth": 1, "label": "calibrated"}
            axes.axline((0.0, 0.0), slope=1, **dotted)
            axes.set_title(said, fontsize=9, loc="left")
            axes.set(xlabel="mean predicted score", ylabel="mean measured score")
            axes.locator_params(axis="x", nbins=5)
            axes.legend(fontsize=8, frameon=False)
        with figure(name, "residual", "residual by gene degree", 5.6, 4.0) as axes:
            of_bins = residual_by_degree(cell, genotypes, measured - predicted)
            degree, low, mean, high, rms = of_bins
            axes.fill_between(degree, low, high, color=_BLUE, alpha=0.2, label="quartiles")
            axes.plot(degree, mean, "o-", color=_BLUE, label="mean")
            axes.plot(degree, rms, "s--", color=_ORANGE, label="root mean square")
            axes.axhline(0, color=_GREY, linewidth=1)
            axes.set_xscale("symlog", linthresh=1)
            axes.set(xlabel="edges of a deleted gene, over all relations")
            axes.set(ylabel="measured - predicted")
            axes.legend(fontsize=8, frameon=False)
    for name, (names, given) in (weights or {}).items():
        height = 0.35 * len(names) + 1.4
        with figure(name, "relations", "weight of each relation", 6.0, height) as axes:
            matrix, y = np.asarray(given, dtype=np.float64), np.arange(len(names))
            axes.barh(y, matrix.mean(axis=0), color=_BLUE)
            axes.set_yticks(y, names, parse_math=False)
            axes.invert_yaxis()
            quartiles = np.quantile(matrix, [0.25, 0.75], axis=0)
            axes.hlines(y, *quartiles, color="black", linewidth=1.5)
            axes.set_xlabel(f"weight: mean and quartiles over {len(matrix):,} genes")
    return paths


def calibration(predicted: Doubles, measured: Doubles, bins: int = 10) -> tuple[Doubles, str]:
    """Return bins by prediction, [3, bins], and a text with the slope of measured on predicted.

    The rows are the mean predicted score, the mean measured score, and the standard error of the
    latter (0 for a bin of one row).
    """
    rows = pl.DataFrame({"bin": _bins(predicted, bins), "x": predicted, "y": measured})
    error = (pl.std("y") / pl.len().sqrt()).fill_null(0.0)
    means = rows.group_by("bin").agg(pl.mean("x"), pl.mean("y"), error=error).sort("bin")
    share = predicted.std() / max(measured.std(), 1e-12)
    said = f"no slope: the deviation of the predictions is\n{share:.2%} of the measured one"
    if share >= CONSTANT_BELOW:
        said = f"slope {np.polyfit(predicted - predicted.mean(), measured, 1)[0]:.2f}"
    return means.drop("bin").to_numpy().T, said


def residual_by_degree(
    cell: Cell,
    genotypes: Genotypes,
    residual: Doubles,
    bins: int = 12,
) -> Doubles:
    """Return residuals (measured minus predicted) in bins of deleted genes by degree, [5, bins].

    The rows are the mean degree over all relations, in and out; and the lower quartile, the mean,
    the upper quartile and the root mean square of the residuals. Genes of the same degree are in
    the same bin; a gene counts once for every genotype that deletes it.
    """
    degree = np.zeros(cell.n_genes)
    for relation in cell.relations.values():
        degree += relation.in_degree + (relation.out_degree if relation.directed else 0)
    of_gene, residual = degree[genotypes.genes.numpy()], residual[genotypes.owner.numpy()]
    rows = pl.DataFrame({"bin": _bins(of_gene, bins), "degree": of_gene, "residual": residual})
    of_bin = rows.group_by("bin").agg(
        pl.mean("degree"),
        low=pl.quantile("residual", 0.25, "linear"),
        mean=pl.mean("residual"),
        high=pl.quantile("residual", 0.75, "linear"),
        rms=pl.col("residual").pow(2).mean().sqrt(),
    )
    return of_bin.sort("bin").drop("bin").to_numpy().T


def _bins(values: Doubles, bins: int) -> Ints:
    inner = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    _, at = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    return at


def plot_metric(result: Mapping[str, Any], metric: str, axes: Axes | None = None) -> Axes:
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
