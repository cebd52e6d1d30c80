"""How well predictions fit what was measured, with intervals over resamples of the genes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray, Doubles, Ints
from deltacell.words import Progress

#: With fewer rows no metric is defined.
FEWEST_ROWS = 3
#: Why a predictor that says one thing of all rows has no correlation.
CONSTANT = "the predictions are all the same"
#: The share of resamples in which a value must be defined for an interval to be given.
ENOUGH_DEFINED = 0.95

_NUMBERS_A_BLOCK = 500_000
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
    def spread(self) -> float:
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


# Several metrics need the ranking of a prediction, and all predictors that of the truth.
@lru_cache(maxsize=8)
def ranking(weights: Weights, column: Column) -> tuple[Doubles, Doubles]:
    """Return how many rows have each distinct value, and how many a smaller one, [b, k]."""
    size = _sums(weights.array.take(column.order, axis=1), column.starts)
    return size, np.cumsum(size, axis=1) - size


def midranks(weights: Weights, column: Column) -> Doubles:
    """Return the rank of each row, from 1; equal values share theirs. [b, n]."""
    size, below = ranking(weights, column)
    return (below + (size + 1) / 2).take(column.group, axis=1)


@lru_cache(maxsize=2)
def _positives(weights: Weights, prediction: Column, positive: Column) -> tuple[Ints, Doubles]:
    """Return the distinct predictions that a positive has, and the positives at each, [b, k].

    Only they matter to a metric of classes, and they are often few.
    """
    rows = prediction.order[positive.values[prediction.order] > 0]
    group = prediction.group[rows]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return group[starts], _sums(weights.array.take(rows, axis=1), starts)


#: From predictions [n], truth [n] and weights [b, n] to values [b]; NaN where undefined.
Function = Callable[[Column, Column, Weights], Doubles]


def pearson(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Pearson's correlation, ``cov(x, y) / sqrt(var(x) var(y))``."""
    return _correlation(prediction.standard, truth.standard, weights)


def spearman(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing theirs."""
    x, y = (midranks(weights, one) / weights.total[:, None] for one in (prediction, truth))
    return _correlation(x, y, weights)


def mse(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the mean of ``(x - y)^2``."""
    return weights.mean((prediction.values - truth.values) ** 2)


def slope(prediction: Column, truth: Column, weights: Weights) -> Doubles:
    """Return the slope of the line of least squares, ``cov(x, y) / var(x)``.

    It is 1 for calibrated predictions, and below 1 for those that are spread too wide.
    """
    covariance, variance, _ = _moments(prediction.standard, truth.standard, weights)
    ratio = covariance / np.where(variance > _NO_VARIANCE, variance, np.nan)
    return ratio * truth.spread / prediction.spread


@_undefined_is_nan
def auroc(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the share of pairs of a positive and another that are in the right order.

    ``(sum over positives of the rows below, equal ones half, - P^2 / 2) / (P N)`` for P positives
    and N others; a pair with equal predictions counts half. Larger predictions mean positive.
    """
    groups, found = _positives(weights, prediction, positive)
    size, below = ranking(weights, prediction)
    positives = found.sum(axis=1)
    ordered = _dot(found, (below + size / 2).take(groups, axis=1)) - positives**2 / 2
    share: Doubles = ordered / (positives * (weights.total - positives))
    return share


@_undefined_is_nan
def aupr(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the average precision, the area under precision against recall in steps.

    ``sum over k of (R_k - R_{k-1}) P_k`` over the distinct predictions, from the largest down, with
    P_k the precision and R_k the recall of all rows down to there. Random predictions reach the
    share of positives.
    """
    groups, found = _positives(weights, prediction, positive)
    positives, below = found.sum(axis=1), np.cumsum(found, axis=1) - found
    seen = weights.total[:, None] - ranking(weights, prediction)[1].take(groups, axis=1)
    area: Doubles = _dot(found, _divided(positives[:, None] - below, seen)) / positives
    return np.where((positives == 0) | (positives == weights.total), np.nan, area)


def precision_of_first(k: int, population: float) -> Function:
    """Return the metric: the share of positives among the k rows with the largest predictions.

    Rows are counted by weight, of which there is `population` in all. Of rows with equal
    predictions the same share is taken of each. In a resample of another total weight, the same
    share ``k / population`` is looked at.
    """

    @_undefined_is_nan
    def precision(prediction: Column, positive: Column, weights: Weights) -> Doubles:
        groups, found = _positives(weights, prediction, positive)
        size, below = (one.take(groups, axis=1) for one in ranking(weights, prediction))
        wanted = k * weights.total / population
        left = wanted[:, None] - (weights.total[:, None] - below - size)
        share: Doubles = _dot(found, np.clip(_divided(left, size), 0.0, 1.0)) / wanted
        return share

    return precision


def _correlation(x: Doubles, y: Doubles, weights: Weights) -> Doubles:
    covariance, of_x, of_y = _moments(x, y, weights)
    defined = (of_x > _NO_VARIANCE) & (of_y > _NO_VARIANCE)
    ratio = covariance / np.sqrt(np.where(defined, of_x * of_y, 1.0))
    return np.where(defined, np.clip(ratio, -1.0, 1.0), np.nan)


def _moments(x: Doubles, y: Doubles, weights: Weights) -> tuple[Doubles, Doubles, Doubles]:
    """Return the covariance and both variances, [b] each."""
    mean_x, mean_y = weights.mean(x), weights.mean(y)
    covariance = weights.mean(x * y) - mean_x * mean_y
    return covariance, weights.mean(x * x) - mean_x**2, weights.mean(y * y) - mean_y**2


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
    """A number that says how well predictions fit."""

    title: str  # in tables
    # The measured scores; or 1 for a positive and 0 for another; or, among all tested sets, 1 for
    # a hit, and for a hit with a negative score.
    of: Literal["score", "class", "hit", "negative"]
    better: Literal["higher", "lower", "one"]  # or the one value that is best
    function: Function

    def measure(
        self, prediction: Column, truth: Column, weight: Doubles | None = None
    ) -> tuple[float | None, str | None]:
        """Return its value, each row counted `weight` times, or why it is not defined."""
        if len(truth.values) < FEWEST_ROWS:
            return None, f"there are fewer than {FEWEST_ROWS} rows"
        if self.of != "score" and len(truth.starts) == 1:
            which = "positive" if truth.values[0] else "negative"
            return None, f"all {len(truth.values):,} rows are of one class, the {which}"
        if self.of == "score" and self.function is not mse:
            for column, why in (
                (truth, "what was measured is the same in all rows"),
                (prediction, CONSTANT),
            ):
                # Models compute in float32.
                rounding = 4 * np.finfo(np.float32).eps * np.abs(column.values).max()
                if np.ptp(column.values) <= rounding:
                    return None, why
        once = np.ones(len(truth.values)) if weight is None else weight
        value = float(self.function(prediction, truth, Weights(once[None]))[0])
        return (value, None) if np.isfinite(value) else (None, "it is not a number")

    def to_json(self) -> dict[str, str]:
        return {"title": self.title, "of": self.of, "better": self.better}


#: All metrics by name, in the order of tables.
METRICS: Mapping[str, Metric] = {
    "pearson": Metric("Pearson", "score", "higher", pearson),
    "spearman": Metric("Spearman", "score", "higher", spearman),
    "mse": Metric("MSE", "score", "lower", mse),
    "auroc": Metric("AUROC", "class", "higher", auroc),
    "aupr": Metric("AUPR", "class", "higher", aupr),
}


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, or the reason why one of them is missing."""

    value: float | None  # over several seeds their mean
    low: float | None = None  # interval over resamples; None where too few define it
    high: float | None = None
    reason: str | None = None
    seeds: tuple[float | None, ...] = ()  # the number for each seed
    seed_deviation: float | None = None  # over two or more seeds

    @classmethod
    def over_seeds(cls, measured: Sequence[tuple[float | None, str | None]]) -> Estimate:
        """Return the mean over seeds without an interval, from each value or why there is none."""
        seeds = tuple(value for value, _ in measured)
        known = [value for value in seeds if value is not None]
        if len(known) < len(seeds):
            return cls(None, reason=next(why for _, why in measured if why), seeds=seeds)
        deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(float(np.mean(known)), seeds=seeds, seed_deviation=deviation)


#: By predictor, then metric.
Scores = Mapping[str, Mapping[str, Estimate]]
#: By predictor, then the other predictor, then metric: the first minus the other, paired.
Differences = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are found: percentiles over resamples of the genes.

    Gene sets that share a gene are not independent: if a predictor is wrong about a gene, it is
    wrong about all its sets. So genes are drawn with replacement, and a set counts as often as the
    product of how often its genes were drawn (the pigeonhole bootstrap of Owen, 2007). Intervals
    are about right where errors are shared by gene. They are conservative where errors are
    independent: up to the square root of 3 too wide for pairs, and of 7 for triples.
    """

    resamples: int = 1000
    level: float = 0.95  # the share of resamples that an interval holds
    seed: int = 0

    def weights(self, units: AnyArray, name: str = "") -> Iterator[Doubles]:
        """Yield how often each row of units [rows, m] counts in each resample, [b, rows] per block.

        As many units as there are different ones are drawn; a row counts as the product of its
        units, padded with -1. What is drawn does not depend on the order of the rows.
        """
        distinct, flat = np.unique(units, return_inverse=True)
        of_row = flat.reshape(units.shape)
        n_padding = int((distinct[:1] == -1).sum())
        n = len(distinct) - n_padding
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        block = max(1, _NUMBERS_A_BLOCK // max(len(units), 1))
        for start in range(0, self.resamples, block):
            wide = min(block, self.resamples - start)
            drawn = rng.integers(0, n, (wide, n))
            at = (drawn + n * np.arange(wide)[:, None]).ravel()
            counts = np.bincount(at, minlength=wide * n).reshape(wide, n).astype(np.float64)
            # Padding is the smallest, so it comes first; it leaves a product as it is.
            counts = np.concatenate([np.ones((wide, n_padding)), counts], axis=1)
            product = counts.take(of_row[:, 0], axis=1)
            for column in of_row.T[1:]:
                product *= counts.take(column, axis=1)
            yield product

    def interval(self, values: Doubles) -> tuple[float, float] | None:
        """Return the percentiles of resampled values, or None where too many are NaN."""
        defined = values[np.isfinite(values)]
        if len(defined) < ENOUGH_DEFINED * len(values):
            return None
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail])
        return float(low), float(high)

    def with_interval(self, one: Estimate, values: Doubles) -> Estimate:
        """Return an estimate with the interval of its resampled values, if it has a value."""
        if one.value is None:
            return one
        if found := self.interval(values):
            return replace(one, low=found[0], high=found[1])
        undefined = int((~np.isfinite(values)).sum())
        why = f"it is not defined in {undefined:,} of {len(values):,} resamples"
        return replace(one, reason=why)


#: By what a metric looks at, see `Metric.of`.
Columns = Mapping[str, Doubles]


def compared(
    metrics: Mapping[str, Metric],
    truth: Columns,
    predictions: Mapping[str, Sequence[Columns]],
    genes: Ints,
    bootstrap: Bootstrap,
    label: str,
    *,
    weight: Doubles | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Scores, Differences]:
    """Return all metrics of predictors, each with its seeds, and all paired differences.

    The ``truth`` of a row that is left out is NaN; `genes` are those of each row, padded with -1,
    and `weight` is how often each row counts.
    """
    used = {of: np.isfinite(values) for of, values in truth.items()}

    def columns(one: Columns) -> dict[str, Column]:
        return {of: Column(values[used[of]]) for of, values in one.items()}

    known = columns(truth)
    given = {name: list(map(columns, seeds)) for name, seeds in predictions.items()}
    points, drawn = {}, {}
    for name, seeds in given.items():
        for m, metric in metrics.items():
            of = metric.of
            often = None if weight is None else weight[used[of]]
            measured = [metric.measure(one[of], known[of], often) for one in seeds]
            points[name, m] = Estimate.over_seeds(measured)
            drawn[name, m] = np.full(bootstrap.resamples, np.nan)
    done = 0
    for block in bootstrap.weights(genes, label):
        if weight is not None:
            block *= weight
        weights = {
            of: Weights(block if rows.all() else block[:, rows]) for of, rows in used.items()
        }
        now = slice(done, done := done + len(block))
        for (name, m), values in drawn.items():
            if points[name, m].value is not None:
                of, function = metrics[m].of, metrics[m].function
                each = [function(one[of], known[of], weights[of]) for one in given[name]]
                values[now] = np.mean(each, axis=0)
        progress(f"resamples of {label}", done, bootstrap.resamples)

    def difference(one: str, other: str, m: str) -> Estimate:
        for name in (one, other):
            if points[name, m].value is None:
                return Estimate(None, reason=f"{name}: {points[name, m].reason}")
        value = (points[one, m].value or 0.0) - (points[other, m].value or 0.0)
        return bootstrap.with_interval(Estimate(value), drawn[one, m] - drawn[other, m])

    scores = {
        name: {m: bootstrap.with_interval(points[name, m], drawn[name, m]) for m in metrics}
        for name in predictions
    }
    differences = {
        one: {
            other: {m: difference(one, other, m) for m in metrics}
            for other in scores
            if other != one
        }
        for one in scores
    }
    return scores, differences
