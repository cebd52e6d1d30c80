"""How well predictions fit what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import Doubles, Ints

FEWEST_ROWS = 3  # with fewer no metric is defined
CONSTANT = "the predictions are all the same"  # the reason for an undefined correlation

_NO_VARIANCE = 1e-14

_undefined_is_nan = np.errstate(invalid="ignore", divide="ignore")


class Column:
    """One number per row, with the order and the ties of the numbers."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self.values: Doubles = np.asarray(values, dtype=np.float64)
        self.order: Ints = np.argsort(self.values, kind="stable")
        is_new = np.diff(self.values[self.order], prepend=np.nan) != 0
        self.starts: Ints = np.flatnonzero(is_new)  # where in `order` each distinct value begins
        self.group = np.empty_like(self.order)  # the distinct value that each row has
        self.group[self.order] = np.cumsum(is_new) - 1

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal but for rounding, because models compute in float32."""
        rounding = 4 * np.finfo(np.float32).eps * np.abs(self.values).max()
        return bool(np.ptp(self.values) <= rounding)

    @property
    def spread(self) -> float:
        """The standard deviation, or 1 if it is 0."""
        return float(self.values.std()) or 1.0

    @property
    def standard(self) -> Doubles:
        """The values less their mean and in units of their spread, which saves digits."""
        standard: Doubles = (self.values - self.values.mean()) / self.spread
        return standard


class Weights:
    """How often each row counts in each of b resamples, [b, n]."""

    def __init__(self, array: Doubles) -> None:
        self.array = array
        self.total: Doubles = array.sum(axis=1)

    @_undefined_is_nan
    def mean(self, values: Doubles) -> Doubles:
        """Return the means in each resample of values [n] or [b, n]; NaN without any row."""
        sums = self.array @ values if values.ndim == 1 else _dot(self.array, values)
        mean: Doubles = sums / self.total
        return mean


# Several metrics rank the same prediction, and all predictors share the ranking of the truth.
@lru_cache(maxsize=8)
def ranking(weights: Weights, column: Column) -> tuple[Doubles, Doubles]:
    """Return how many rows have each distinct value, and how many a smaller one, [b, k]."""
    size = _sums(weights.array.take(column.order, axis=1), column.starts)
    below = np.cumsum(size, axis=1) - size
    return size, below


@lru_cache(maxsize=2)
def _positives(weights: Weights, prediction: Column, positive: Column) -> tuple[Ints, Doubles]:
    """Return the distinct predictions of positives, often few, and the counts of each, [b, k]."""
    rows = prediction.order[positive.values[prediction.order] > 0]
    group = prediction.group[rows]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return group[starts], _sums(weights.array.take(rows, axis=1), starts)


#: From predictions [n], truth [n] and weights [b, n] to values [b]; NaN where undefined.
Function = Callable[[Column, Column, Weights], Doubles]


def pearson(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Pearson's correlation, ``cov(x, y) / sqrt(var(x) var(y))``."""
    return _correlation(prediction.standard, truth.standard, weights)


@_undefined_is_nan
def spearman(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Spearman's correlation: Pearson's of the ranks, with ties at their mean rank."""

    def ranks(column: Column) -> Doubles:
        size, below = ranking(weights, column)
        return (below + (size + 1) / 2).take(column.group, axis=1) / weights.total[:, None]

    return _correlation(ranks(prediction), ranks(truth), weights)


def mse(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the mean of ``(x - y)^2``."""
    return weights.mean((prediction.values - truth.values) ** 2)


def slope(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the least-squares slope, ``cov(x, y) / var(x)``: 1 for calibrated predictions."""
    covariance, variance, _ = _moments(prediction.standard, truth.standard, weights)
    ratio = covariance / np.where(variance > _NO_VARIANCE, variance, np.nan)
    return ratio * truth.spread / prediction.spread


@_undefined_is_nan
def auroc(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the share of pairs of a positive and a negative that are in the right order.

    ``(sum over positives of the rows below, ties half, - P^2 / 2) / (P N)`` for P positives and N
    negatives. Larger predictions mean positive.
    """
    groups, n_of_group = _positives(weights, prediction, positive)
    size, below = ranking(weights, prediction)
    n_positives = n_of_group.sum(axis=1)
    below_each = (below + size / 2).take(groups, axis=1)
    n_ordered = _dot(n_of_group, below_each) - n_positives**2 / 2
    n_negatives = weights.total - n_positives
    share: Doubles = n_ordered / (n_positives * n_negatives)
    return share


@_undefined_is_nan
def aupr(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the average precision: ``sum over k of (R_k - R_{k-1}) P_k``.

    The sum is over the distinct predictions, from the largest down; P_k is the precision and R_k
    the recall of all rows down to there. Random predictions reach the share of positives.
    """
    groups, n_of_group = _positives(weights, prediction, positive)
    n_positives = n_of_group.sum(axis=1)
    positives_below = np.cumsum(n_of_group, axis=1) - n_of_group
    rows_below = ranking(weights, prediction)[1].take(groups, axis=1)
    n_seen = weights.total[:, None] - rows_below
    precision = _divided(n_positives[:, None] - positives_below, n_seen)
    area: Doubles = _dot(n_of_group, precision) / n_positives
    is_one_class = (n_positives == 0) | (n_positives == weights.total)
    return np.where(is_one_class, np.nan, area)


def precision_of_first(k: int, population: float) -> Function:
    """Return the metric: the share of positives among the k rows with the largest predictions.

    Rows are counted by weight; their total is `population`, and in a resample the first
    ``k / population`` of its total count. Tied rows each count with the same share.
    """

    @_undefined_is_nan
    def precision(prediction: Column, positive: Column, weights: Weights) -> Doubles:
        groups, n_of_group = _positives(weights, prediction, positive)
        size_of_all, below_all = ranking(weights, prediction)
        size = size_of_all.take(groups, axis=1)
        below = below_all.take(groups, axis=1)
        n_wanted = k * weights.total / population
        n_above = weights.total[:, None] - below - size
        n_left = n_wanted[:, None] - n_above
        share_of_group = np.clip(_divided(n_left, size), 0.0, 1.0)
        share: Doubles = _dot(n_of_group, share_of_group) / n_wanted
        return share

    return precision


def _correlation(x: Doubles, y: Doubles, weights: Weights) -> Doubles:
    covariance, of_x, of_y = _moments(x, y, weights)
    defined = (of_x > _NO_VARIANCE) & (of_y > _NO_VARIANCE)
    ratio = covariance / np.sqrt(np.where(defined, of_x * of_y, 1.0))
    return np.where(defined, np.clip(ratio, -1.0, 1.0), np.nan)


def _moments(x: Doubles, y: Doubles, weights: Weights) -> tuple[Doubles, Doubles, Doubles]:
    """Return the covariance and both variances, [b] each."""
    mean_x = weights.mean(x)
    mean_y = weights.mean(y)
    covariance = weights.mean(x * y) - mean_x * mean_y
    variance_x = weights.mean(x * x) - mean_x**2
    variance_y = weights.mean(y * y) - mean_y**2
    return covariance, variance_x, variance_y


def _sums(rows: Doubles, starts: Ints) -> Doubles:
    if len(starts) == rows.shape[1]:
        return rows
    sums: Doubles = np.add.reduceat(rows, starts, axis=1)
    return sums


def _dot(a: Doubles, b: Doubles) -> Doubles:
    """Return the products of rows, [b]."""
    product: Doubles = np.einsum("bn,bn->b", a, b)
    return product


def _divided(a: Doubles, b: Doubles) -> Doubles:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


@dataclass(frozen=True)
class Metric:
    """A measure of how well predictions fit."""

    title: str  # in tables
    # What it compares with: measured scores; or classes, 1 for a positive and 0 otherwise; or,
    # among all tested sets, 1 for a hit, or for a hit with a negative score.
    of: Literal["score", "class", "hit", "negative"]
    better: Literal["higher", "lower", "one"]
    function: Function

    def measure(
        self,
        prediction: Column,
        truth: Column,
        weight: Doubles | None = None,
    ) -> tuple[float | None, str | None]:
        """Return the value, each row counted `weight` times, or why it is undefined."""
        reason = self._reason_undefined(prediction, truth)
        if reason is not None:
            return None, reason
        once = np.ones(len(truth.values)) if weight is None else weight
        value = float(self.function(prediction, truth, Weights(once[None]))[0])
        return (value, None) if np.isfinite(value) else (None, "the value is not finite")

    def _reason_undefined(self, prediction: Column, truth: Column) -> str | None:
        n_rows = len(truth.values)
        if n_rows < FEWEST_ROWS:
            return f"there are fewer than {FEWEST_ROWS} rows"
        if self.of != "score":
            which = "positive" if truth.values[0] else "negative"
            return f"all {n_rows:,} rows are {which}" if len(truth.starts) == 1 else None
        if self.function is mse:
            return None
        if truth.is_constant:
            return "the measured scores are all equal"
        return CONSTANT if prediction.is_constant else None

    def to_json(self) -> dict[str, str]:
        """Return what tables say of the metric."""
        return {"title": self.title, "of": self.of, "better": self.better}


#: All metrics by name, in the order of tables.
METRICS: Mapping[str, Metric] = {
    "pearson": Metric("Pearson", "score", "higher", pearson),
    "spearman": Metric("Spearman", "score", "higher", spearman),
    "mse": Metric("MSE", "score", "lower", mse),
    "auroc": Metric("AUROC", "class", "higher", auroc),
    "aupr": Metric("AUPR", "class", "higher", aupr),
}
