"""The numbers that the figures of an evaluation show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.evaluation.evaluation import check_fit
from deltacell.screen import Genotypes, Screen, Split

CONSTANT_BELOW = 0.01  # the deviation of constant predictions, as a share of the measured one


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """Test rows in bins by their prediction, and the slope of measured on predicted scores."""

    predicted: Doubles  # the mean of each bin, [bins]
    measured: Doubles  # the mean of each bin, [bins]
    standard_error: Doubles  # of the measured mean, 0 for a bin of one row, [bins]
    slope: float | None  # None for predictions that are nearly constant
    deviation_share: float  # the deviation of the predictions, as a share of the measured one


@dataclass(frozen=True, eq=False)
class ResidualBins:
    """Residuals, measured minus predicted, in bins of deleted genes by degree; [bins] each."""

    degree: Doubles  # the mean, over all relations, in and out
    lower_quartile: Doubles
    mean: Doubles
    upper_quartile: Doubles
    root_mean_square: Doubles


@dataclass(frozen=True, eq=False)
class PredictorFigures:
    """What the figures of one predictor show."""

    name: str
    measured: Doubles  # the scores of the test rows that have one, [rows]
    predicted: Doubles  # [rows]
    calibration: CalibrationBins
    residuals: ResidualBins


def figure_values(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Mapping[str, npt.ArrayLike],
) -> list[PredictorFigures]:
    """Return what the figures of each predictor show, over the test rows with a score.

    ``predictions`` has one number per row of the test part, by predictor.
    """
    check_fit(cell, screen, split)
    score = screen.column("score").astype(np.float64)[split.test]
    has_score = np.isfinite(score)
    if not has_score.any():
        raise InputError("no test row has a measured score", code="no-scores")
    measured = score[has_score]
    genotypes = screen.genotypes.take(torch.from_numpy(split.test[has_score]))
    figures = []
    for name, values in predictions.items():
        predicted = np.asarray(values, dtype=np.float64)[has_score]
        residuals = residual_by_degree(cell, genotypes, measured - predicted)
        bins = calibration(predicted, measured)
        figures.append(PredictorFigures(name, measured, predicted, bins, residuals))
    return figures


def calibration(predicted: Doubles, measured: Doubles, bins: int = 10) -> CalibrationBins:
    """Return rows in bins by their prediction, and the slope of measured on predicted scores."""
    rows = pl.DataFrame({"bin": _bins(predicted, bins), "x": predicted, "y": measured})
    standard_error = (pl.std("y") / pl.len().sqrt()).fill_null(0.0)
    means = rows.group_by("bin").agg(pl.mean("x"), pl.mean("y"), error=standard_error).sort("bin")
    share = float(predicted.std() / max(measured.std(), 1e-12))
    slope = None
    if share >= CONSTANT_BELOW:
        slope = float(np.polyfit(predicted - predicted.mean(), measured, 1)[0])
    x, y, error = means.drop("bin").to_numpy().T
    return CalibrationBins(x, y, error, slope, share)


def residual_by_degree(
    cell: Cell,
    genotypes: Genotypes,
    residual: Doubles,
    bins: int = 12,
) -> ResidualBins:
    """Return residuals in bins of deleted genes by degree.

    Genes of the same degree are in the same bin; a gene counts once for every genotype that
    deletes it.
    """
    degree = np.zeros(cell.n_genes)
    for relation in cell.relations.values():
        degree += relation.in_degree + (relation.out_degree if relation.directed else 0)
    degree_of_deleted = degree[genotypes.genes.numpy()]
    rows = pl.DataFrame(
        {
            "bin": _bins(degree_of_deleted, bins),
            "degree": degree_of_deleted,
            "residual": residual[genotypes.owner.numpy()],
        },
    )
    summary = rows.group_by("bin").agg(
        pl.mean("degree"),
        low=pl.quantile("residual", 0.25, "linear"),
        mean=pl.mean("residual"),
        high=pl.quantile("residual", 0.75, "linear"),
        rms=pl.col("residual").pow(2).mean().sqrt(),
    )
    return ResidualBins(*summary.sort("bin").drop("bin").to_numpy().T)


def _bins(values: Doubles, bins: int) -> Ints:
    """Return the bin of each value; the limits of the bins are quantiles."""
    limits = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    place = np.searchsorted(limits, values, side="right")
    return np.unique(place, return_inverse=True)[1]
