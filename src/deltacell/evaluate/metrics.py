"""How well predictions fit what was measured, for many weightings of the rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Doubles, Ints

#: With fewer rows no metric is defined.
FEWEST_ROWS = 3
#: Why a predictor that says one thing of all rows has no correlation.
CONSTANT = "the predictions are all the same"

_KEPT = 3
_NO_VARIANCE = 1e-14
_NEED_SPREAD = ("pearson", "spearman", "slope")


class Column:
    """One number per row, and what follows from the numbers alone: their order and their ties."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self.values: Doubles = np.asarray(values, dtype=np.float64)
        self._moments: tuple[Column, Doubles] | None = None
        self._positives: tuple[Column, tuple[Ints, Ints, Ints]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def standard(self) -> Doubles:
        """The values less their mean and in units of their spread, which saves digits; [n]."""
        standard: Doubles = (self.values - self.values.mean()) / (self.spread or 1.0)
        return standard

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the values."""
        return float(self.values.std())

    def moments(self, other: Column) -> Doubles:
        """Return x, y, x^2, y^2 and x y of both columns' standard values, [n, 5]."""
        if self._moments is None or self._moments[0] is not other:
            x, y = self.standard, other.standard
            self._moments = other, np.stack([x, y, x * x, y * y, x * y], axis=1)
        return self._moments[1]

    @cached_property
    def order(self) -> Ints:
        """The rows by ascending value, [n]."""
        return np.argsort(self.values, kind="stable")

    @cached_property
    def starts(self) -> Ints:
        """Where in `order` each distinct value begins, [k]."""
        ordered = self.values[self.order]
        return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))

    @cached_property
    def group(self) -> Ints:
        """The distinct value that each row has, counted from the smallest, [n]."""
        group = np.empty(len(self), dtype=np.int64)
        sizes = np.diff(self.starts, append=len(self))
        group[self.order] = np.repeat(np.arange(len(self.starts)), sizes)
        return group

    def positive_groups(self, positive: Column) -> tuple[Ints, Ints, Ints]:
        """Return the positive rows by ascending value, where distinct values begin, and these."""
        if self._positives is None or self._positives[0] is not positive:
            rows = self.order[positive.values[self.order] > 0]
            group = self.group[rows]
            starts = np.flatnonzero(np.diff(group, prepend=-1))
            self._positives = positive, (rows, starts, group[starts])
        return self._positives[1]

    def sums(self, ordered: Doubles) -> Doubles:
        """Return the sums over rows with the same value, [b, k], of numbers in `order`, [b, n]."""
        if len(self.starts) == len(self):
            return ordered
        sums: Doubles = np.add.reduceat(ordered, self.starts, axis=1)
        return sums


class Weights:
    """How often each row counts, in whole numbers, in each of b resamples, [b, n]."""

    def __init__(self, array: Doubles) -> None:
        self.array = array
        self.total: Doubles = array.sum(axis=1)
        self._rankings: dict[int, Ranking] = {}

    def mean(self, values: Doubles) -> Doubles:
        """Return the mean over rows in each resample, [b, columns]; NaN without any row."""
        total = self.total if values.ndim == 1 else self.total[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Doubles = self.array @ values / total
        return mean

    def ranking(self, column: Column) -> Ranking:
        """Return the ranks of a column; the last few are kept."""
        # A ranking holds its column, so that no other column can have the same id meanwhile.
        found = self._rankings.pop(id(column), None) or Ranking(column, self)
        self._rankings[id(column)] = found
        while len(self._rankings) > _KEPT:
            del self._rankings[next(iter(self._rankings))]
        return found


class Ranking:
    """Ranks, from 1, among the rows written out as often as the weights say; ties share theirs."""

    def __init__(self, column: Column, weights: Weights) -> None:
        self.column, self._array = column, weights.array
        # How often each distinct value is there, and how many rows have a smaller one, [b, k].
        self.size: Doubles = column.sums(weights.array.take(column.order, axis=1))
        self.below: Doubles = np.cumsum(self.size, axis=1)
        self.below -= self.size

    @property
    def cubes(self) -> Doubles:
        """The sum over distinct values of the cube of how often each is there, [b]."""
        cubes: Doubles = np.einsum("bn,bn->b", self.size * self.size, self.size)
        return cubes

    @cached_property
    def rank(self) -> Doubles:
        """The rank of each distinct value, [b, k]."""
        return self.below + (self.size + 1) / 2

    @cached_property
    def weighted(self) -> Doubles:
        """The rank of each row times its weight, [b, n]."""
        weighted: Doubles = self.rank.take(self.column.group, axis=1)
        weighted *= self._array
        return weighted


#: From predictions [n], truth [n] and weights [b, n] to values [b]; NaN where undefined.
Function = Callable[[Column, Column, Weights], Doubles]


@dataclass(frozen=True)
class Metric:
    """A number that says how well predictions fit.

    Parameters
    ----------
    name, title
        What it is called in results and in tables.
    of
        ``score``, the measured scores; ``class``, 1 for a positive and 0 for another; or, among all
        tested sets, ``hit`` and ``negative``, 1 for a hit and for one with a negative score.
    better
        Which way is better, or the ``one`` value that is best.
    function
        Computes it.
    """

    name: str
    title: str
    of: Literal["score", "class", "hit", "negative"]
    better: Literal["higher", "lower", "one"]
    function: Function

    def undefined(self, prediction: Doubles, truth: Doubles) -> str | None:
        """Return why it is not defined on these rows, or None where it is."""
        if len(truth) < FEWEST_ROWS:
            return f"there are fewer than {FEWEST_ROWS} rows"
        if self.of != "score" and truth.min() == truth.max():
            which = "positive" if truth[0] else "negative"
            return f"all {len(truth):,} rows are of one class, the {which}"
        if self.name in _NEED_SPREAD and _is_constant(truth):
            return "what was measured is the same in all rows"
        if self.name in _NEED_SPREAD and _is_constant(prediction):
            return CONSTANT
        return None

    def __call__(
        self, prediction: npt.ArrayLike, truth: npt.ArrayLike, weight: Doubles | None = None
    ) -> float | None:
        """Return its value, each row counted `weight` times, or None where it is not defined."""
        return self.value(Column(prediction), Column(truth), weight)

    def value(
        self, prediction: Column, truth: Column, weight: Doubles | None = None
    ) -> float | None:
        """Return its value of columns, or None where it is not defined."""
        if self.undefined(prediction.values, truth.values) is not None:
            return None
        once = np.ones(len(truth)) if weight is None else weight
        value = float(self.function(prediction, truth, Weights(once[None]))[0])
        return value if np.isfinite(value) else None


def pearson(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Pearson's correlation, ``cov(x, y) / sqrt(var(x) var(y))``, weighted; [b]."""
    mean = weights.mean(prediction.moments(truth)).T
    covariance = mean[4] - mean[0] * mean[1]
    return _correlation(covariance, mean[2] - mean[0] ** 2, mean[3] - mean[1] ** 2)


def spearman(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing theirs; [b].

    With N rows in all, each counted as often as its weight says, the variance of ranks whose ties
    have the sizes t is ``(N^3 - sum of t^3) / 12 N``.
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
    """Return the mean of ``(x - y)^2``, weighted; [b]."""
    return weights.mean((prediction.values - truth.values) ** 2)


def auroc(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the share of pairs of a positive and another that are in the right order; [b].

    ``(sum over positives of the rows below, equal ones half, - P^2 / 2) / (P N)`` for P positives
    and N others; a pair with equal predictions counts half. Larger predictions mean positive.
    """
    groups, found = _positives(prediction, positive, weights)
    ranking = weights.ranking(prediction)
    below = ranking.below.take(groups, axis=1) + ranking.size.take(groups, axis=1) / 2
    positives = found.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Doubles = (np.einsum("bn,bn->b", found, below) - positives**2 / 2) / (
            positives * (weights.total - positives)
        )
    return share


def aupr(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the average precision, the area under precision against recall in steps; [b].

    ``sum over k of (R_k - R_{k-1}) P_k`` over the distinct predictions, from the largest down, with
    P_k the precision and R_k the recall of all rows down to there. Random predictions reach the
    share of positives.
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


def slope(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the slope of the line of least squares, ``cov(x, y) / var(x)``, weighted; [b].

    It is 1 for calibrated predictions, and below 1 for those that are spread too wide.
    """
    mean = weights.mean(prediction.moments(truth)).T
    variance = mean[2] - mean[0] ** 2
    defined = variance > _NO_VARIANCE
    ratio = (mean[4] - mean[0] * mean[1]) / np.where(defined, variance, 1.0)
    return np.where(defined, ratio * truth.spread / (prediction.spread or 1.0), np.nan)


def precision_of_first(k: int, population: float) -> Function:
    """Return the metric: the share of positives among the k rows with the largest predictions.

    Rows are counted by weight, of which there is `population` in all. Of rows with equal
    predictions the same share is taken of each. In a resample of another total weight, the same
    share ``k / population`` is looked at.
    """

    def precision(prediction: Column, positive: Column, weights: Weights) -> Doubles:
        wanted = k * weights.total / population
        rows = prediction.order[::-1]
        n = min(len(rows), 4 * k + 100)
        while True:
            # Not to cut through equal predictions, the last group is taken whole.
            n = len(rows) - int(prediction.starts[prediction.group[rows[n - 1]]])
            top = weights.array.take(rows[:n], axis=1)
            if n == len(rows) or (top.sum(axis=1) >= wanted).all():
                break
            n = min(len(rows), 4 * n)
        starts = np.flatnonzero(np.diff(prediction.group[rows[:n]], prepend=-1))
        size = np.add.reduceat(top, starts, axis=1)
        found = np.add.reduceat(top * positive.values[rows[:n]], starts, axis=1)
        before = np.cumsum(size, axis=1) - size
        taken = np.zeros_like(size)
        np.divide(wanted[:, None] - before, size, out=taken, where=size > 0)
        np.clip(taken, 0.0, 1.0, out=taken)
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Doubles = np.einsum("bn,bn->b", taken, found) / wanted
        return share

    return precision


def _positives(prediction: Column, positive: Column, weights: Weights) -> tuple[Ints, Doubles]:
    """Return the distinct predictions that a positive has, and the positives at each, [b, k]."""
    rows, starts, groups = prediction.positive_groups(positive)
    found = weights.array.take(rows, axis=1)
    if len(starts) < len(rows):
        found = np.add.reduceat(found, starts, axis=1)
    return groups, found


def _correlation(covariance: Doubles, of_x: Doubles, of_y: Doubles) -> Doubles:
    defined = (of_x > _NO_VARIANCE) & (of_y > _NO_VARIANCE)
    ratio = covariance / np.sqrt(np.where(defined, of_x * of_y, 1.0))
    return np.where(defined, np.clip(ratio, -1.0, 1.0), np.nan)


def _is_constant(values: Doubles) -> bool:
    """Whether values differ by no more than the rounding of float32, in which models compute."""
    return bool(np.ptp(values) <= 4 * np.finfo(np.float32).eps * np.abs(values).max())


#: All metrics by name, in the order of tables.
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
