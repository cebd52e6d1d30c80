"""How well predictions fit what was measured, for many weightings of the rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from deltacell.evaluate.ranking import Column, Weights

Doubles = npt.NDArray[np.float64]

FEWEST_ROWS = 3
"""With fewer rows nothing is said."""

CONSTANT = "the predictions are all the same"
"""Why a predictor that says one thing of all rows has no correlation."""

Function = Callable[[Column, Column, Weights], Doubles]


@dataclass(frozen=True)
class Metric:
    """A number that says how well predictions fit.

    Parameters
    ----------
    name
        What it is called in results.
    title
        What it is called in tables.
    of
        ``score``, the measured scores; or ``class``, 1 for a positive and 0 for another.
    better
        Which way is better.
    function
        From predictions [n], truth [n] and weights [b, n] to values [b]; NaN where undefined.
    """

    name: str
    title: str
    of: Literal["score", "class"]
    better: Literal["higher", "lower"]
    function: Function

    def undefined(self, prediction: Doubles, truth: Doubles) -> str | None:
        """Return why it is not defined on these rows, or None where it is."""
        if len(truth) < FEWEST_ROWS:
            return f"there are fewer than {FEWEST_ROWS} rows"
        if self.of == "class" and truth.min() == truth.max():
            which = "positive" if truth[0] else "negative"
            return f"all {len(truth):,} rows are of one class, the {which}"
        if self.name in _NEED_SPREAD:
            if is_constant(truth):
                return "what was measured is the same in all rows"
            if is_constant(prediction):
                return CONSTANT
        return None

    def __call__(self, prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float | None:
        """Return its value with equal weights, or None where it is not defined.

        Parameters
        ----------
        prediction, truth
            One number a row.
        """
        x, y = Column(prediction), Column(truth)
        if self.undefined(x.values, y.values) is not None:
            return None
        value = float(self.function(x, y, Weights(np.ones((1, len(y)))))[0])
        return value if np.isfinite(value) else None


def is_constant(values: Doubles) -> bool:
    """Whether values differ by no more than the rounding of float32, in which models compute."""
    return bool(np.ptp(values) <= 4 * np.finfo(np.float32).eps * np.abs(values).max())


def pearson(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Pearson's correlation, ``cov(x, y) / sqrt(var(x) var(y))``, weighted; [b].

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [b, n].
    """
    x, y = prediction.standard, truth.standard
    moments = np.stack([x, y, x * x, y * y, x * y], axis=1)
    mean = weights.mean(moments).T
    covariance = mean[4] - mean[0] * mean[1]
    return _correlation(covariance, mean[2] - mean[0] ** 2, mean[3] - mean[1] ** 2)


def spearman(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing theirs; [b].

    With N rows in all, each counted as often as its weight says, the variance of ranks whose ties
    have the sizes t is ``(N^3 - sum of t^3) / 12 N``.

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [b, n], in whole numbers.
    """
    x, y = weights.ranking(prediction), weights.ranking(truth)
    n = weights.total
    product = np.einsum(
        "bn,bn->b", x.rank, prediction.sums(y.weighted.take(prediction.order, axis=1))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = (product - n * ((n + 1) / 2) ** 2) / n**3
        of_x, of_y = ((1 - ranking.cubes / n**3) / 12 for ranking in (x, y))
    return _correlation(covariance, of_x, of_y)


def mse(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the mean of ``(x - y)^2``, weighted; [b].

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [b, n].
    """
    return weights.mean((prediction.values - truth.values) ** 2)


def auroc(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the share of pairs of a positive and another that are in the right order; [b].

    ``(sum of the positives' ranks - P (P + 1) / 2) / (P N)`` for P positives and N others; a pair
    with equal predictions counts half.

    Parameters
    ----------
    prediction
        One number a row, larger for what is thought to be positive, [n].
    positive
        1 for a positive and 0 for another, [n].
    weights
        How often each row counts, [b, n], in whole numbers.
    """
    groups, found = _positives(prediction, positive, weights)
    ranks = np.einsum("bn,bn->b", found, weights.ranking(prediction).rank.take(groups, axis=1))
    positives = found.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Doubles = (ranks - positives * (positives + 1) / 2) / (
            positives * (weights.total - positives)
        )
    return share


def aupr(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the average precision, the area under precision against recall in steps; [b].

    ``sum over k of (R_k - R_{k-1}) P_k`` over the distinct predictions, from the largest down, with
    P_k the precision and R_k the recall of all rows down to there. Random predictions reach the
    share of positives.

    Parameters
    ----------
    prediction
        One number a row, larger for what is thought to be positive, [n].
    positive
        1 for a positive and 0 for another, [n].
    weights
        How often each row counts, [b, n].
    """
    groups, found = _positives(prediction, positive, weights)
    positives = found.sum(axis=1)
    # Recall only grows at predictions that a positive has, so the others need not be looked at.
    below = np.cumsum(found, axis=1) - found
    seen = weights.total[:, None] - weights.ranking(prediction).below.take(groups, axis=1)
    precision = np.zeros_like(seen)
    np.divide(positives[:, None] - below, seen, out=precision, where=seen > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Doubles = np.einsum("bn,bn->b", found, precision) / positives
    return np.where((positives == 0) | (positives == weights.total), np.nan, area)


def _positives(
    prediction: Column, positive: Column, weights: Weights
) -> tuple[npt.NDArray[np.int64], Doubles]:
    """Return the distinct predictions that a positive has, and the positives at each, [b, k]."""
    rows = prediction.order[positive.values[prediction.order] > 0]
    group = prediction.group[rows]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    found = weights.array.take(rows, axis=1)
    if len(starts) < len(rows):
        found = np.add.reduceat(found, starts, axis=1)
    return group[starts], found


def _correlation(covariance: Doubles, of_x: Doubles, of_y: Doubles) -> Doubles:
    defined = (of_x > _NO_VARIANCE) & (of_y > _NO_VARIANCE)
    ratio = covariance / np.sqrt(np.where(defined, of_x * of_y, 1.0))
    return np.where(defined, np.clip(ratio, -1.0, 1.0), np.nan)


_NO_VARIANCE = 1e-14
_NEED_SPREAD = ("pearson", "spearman")

METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("pearson", "Pearson", "score", "higher", pearson),
            Metric("spearman", "Spearman", "score", "higher", spearman),
            Metric("mse", "MSE", "score", "lower", mse),
            Metric("auroc", "AUROC", "class", "higher", auroc),
            Metric("aupr", "AUPR", "class", "higher", aupr),
        )
    }
)
"""All metrics by name, in the order of tables."""
