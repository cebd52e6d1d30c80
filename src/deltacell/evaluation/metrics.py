"""How well predictions fit what was measured, with intervals over resamples of the genes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr

from deltacell.base.arrays import AnyArray, Doubles, Ints
from deltacell.base.text import Progress
from deltacell.screen import Screen

FEWEST_ROWS = 3  # with fewer no metric is defined
FEWEST_FREE = 10  # with fewer degrees of freedom the share that is not additive is undefined
FEWEST_SETS = 3  # with fewer repeated sets or test rows there is no ceiling
ENOUGH_DEFINED = 0.95  # the share of resamples in which a value with an interval is defined
CONSTANT = "the predictions are all the same"  # the reason for an undefined correlation

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


# Several metrics rank the same prediction, and all predictors share the ranking of the truth.
@lru_cache(maxsize=8)
def ranking(weights: Weights, column: Column) -> tuple[Doubles, Doubles]:
    """Return how many rows have each distinct value, and how many a smaller one, [b, k]."""
    size = _sums(weights.array.take(column.order, axis=1), column.starts)
    return size, np.cumsum(size, axis=1) - size


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
    groups, found = _positives(weights, prediction, positive)
    size, below = ranking(weights, prediction)
    positives = found.sum(axis=1)
    ordered = _dot(found, (below + size / 2).take(groups, axis=1)) - positives**2 / 2
    share: Doubles = ordered / (positives * (weights.total - positives))
    return share


@_undefined_is_nan
def aupr(prediction: Column, positive: Column, weights: Weights) -> Doubles:
    """Return the average precision: ``sum over k of (R_k - R_{k-1}) P_k``.

    The sum is over the distinct predictions, from the largest down; P_k is the precision and R_k
    the recall of all rows down to there. Random predictions reach the share of positives.
    """
    groups, found = _positives(weights, prediction, positive)
    positives, below = found.sum(axis=1), np.cumsum(found, axis=1) - found
    seen = weights.total[:, None] - ranking(weights, prediction)[1].take(groups, axis=1)
    area: Doubles = _dot(found, _divided(positives[:, None] - below, seen)) / positives
    return np.where((positives == 0) | (positives == weights.total), np.nan, area)


def precision_of_first(k: int, population: float) -> Function:
    """Return the metric: the share of positives among the k rows with the largest predictions.

    Rows are counted by weight; their total is `population`, and in a resample the first
    ``k / population`` of its total count. Tied rows each count with the same share.
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
        if len(truth.values) < FEWEST_ROWS:
            return None, f"there are fewer than {FEWEST_ROWS} rows"
        if self.of != "score" and len(truth.starts) == 1:
            which = "positive" if truth.values[0] else "negative"
            return None, f"all {len(truth.values):,} rows are {which}"
        if self.of == "score" and self.function is not mse:
            for column, why in (
                (truth, "the measured scores are all equal"),
                (prediction, CONSTANT),
            ):
                # Models compute in float32.
                rounding = 4 * np.finfo(np.float32).eps * np.abs(column.values).max()
                if np.ptp(column.values) <= rounding:
                    return None, why
        once = np.ones(len(truth.values)) if weight is None else weight
        value = float(self.function(prediction, truth, Weights(once[None]))[0])
        return (value, None) if np.isfinite(value) else (None, "the value is not finite")

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
    """A value with its interval, or the reason why one of them is missing."""

    value: float | None  # the mean over seeds
    low: float | None = None  # interval over resamples; None if it is undefined in too many
    high: float | None = None
    reason: str | None = None
    seeds: tuple[float | None, ...] = ()  # the value for each seed
    seed_deviation: float | None = None  # over two or more seeds

    @classmethod
    def over_seeds(cls, measured: Sequence[tuple[float | None, str | None]]) -> Estimate:
        """Return the mean over seeds, without an interval, from values or why one is undefined."""
        seeds = tuple(value for value, _ in measured)
        known = [value for value in seeds if value is not None]
        if len(known) < len(seeds):
            return cls(None, reason=next(why for _, why in measured if why), seeds=seeds)
        deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(float(np.mean(known)), seeds=seeds, seed_deviation=deviation)


#: By predictor, then metric.
Scores = Mapping[str, Mapping[str, Estimate]]
#: By predictor, other predictor and metric: the first minus the other, paired.
Differences = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are computed: percentiles over resamples of the genes.

    Gene sets that share a gene are not independent: if a predictor is wrong about a gene, it is
    wrong about all its sets. So genes are drawn with replacement, and a set counts as often as the
    product of how often its genes were drawn (the pigeonhole bootstrap of Owen, 2007). Intervals
    are about right if errors are shared by gene. They are conservative if errors are
    independent: up to the square root of 3 too wide for pairs, and of 7 for triples.
    """

    resamples: int = 1000
    level: float = 0.95  # of the intervals
    seed: int = 0

    def weights(self, units: AnyArray, name: str = "") -> Iterator[Doubles]:
        """Yield how often each row of units [rows, m] counts in each resample, [b, rows] per block.

        As many units are drawn as there are distinct ones; a row counts as the product of its
        units, padded with -1. The draw does not depend on the order of the rows.
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
            # Padding is the smallest and so comes first; its factor is 1.
            counts = np.concatenate([np.ones((wide, n_padding)), counts], axis=1)
            product = counts.take(of_row[:, 0], axis=1)
            for column in of_row.T[1:]:
                product *= counts.take(column, axis=1)
            yield product

    def with_interval(self, one: Estimate, values: Doubles) -> Estimate:
        """Return an estimate with the percentiles of its resampled values, or why it has none."""
        if one.value is None:
            return one
        defined = values[np.isfinite(values)]
        if len(defined) < ENOUGH_DEFINED * len(values):
            n = len(values) - len(defined)
            return replace(one, reason=f"it is undefined in {n:,} of {len(values):,} resamples")
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail]).tolist()
        return replace(one, low=low, high=high)


#: By what a metric compares with, see `Metric.of`.
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

    Rows whose ``truth`` is NaN are left out; `genes` are those of each row, padded with -1, and
    `weight` is how often each row counts.
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
        a: {b: {m: difference(a, b, m) for m in metrics} for b in scores if b != a} for a in scores
    }
    return scores, differences


def not_additive(genes: Ints, values: npt.ArrayLike) -> tuple[float | None, str | None]:
    r"""Return the share of the variance over gene sets that is not additive in the genes.

    With a number :math:`x_s` for each of n different sets, and :math:`\hat x_s = \sum_{g \in s}
    \beta_g` their least-squares fit by one effect per gene, which has rank r,

    .. math::

        \frac{\sum_s (x_s - \hat x_s)^2 / (n - r)}{\sum_s (x_s - \bar x)^2 / (n - 1)}

    It is 0 for a sum of gene effects, and 1 on average for noise that has nothing to do with the
    genes, however many genes there are. The second result is why the first is undefined. The sets
    [n, largest] are padded with -1; only the first of repeated sets counts.
    """
    sets, first = np.unique(np.sort(genes, axis=1), axis=0, return_index=True)
    x = np.asarray(values, dtype=np.float64)[first]
    x = x - x.mean()
    total = float(x @ x)
    if len(x) < 2 or total <= 1e-12 * len(x) * float(np.abs(np.asarray(values)).max()) ** 2:
        return None, CONSTANT
    inside = sets >= 0
    sizes = inside.sum(axis=1)
    present, at = np.unique(sets[inside], return_inverse=True)
    n_genes, mixed = len(present), int(sizes.min() != sizes.max())
    # The mean is a sum of gene effects if all sets have one size; otherwise it is another column.
    columns = np.concatenate([at, np.full(mixed * len(sets), n_genes)])
    owners = np.concatenate([np.nonzero(inside)[0], np.arange(mixed * len(sets))])
    shape = (len(sets), n_genes + mixed)
    design = csr_array((np.ones(len(columns)), (owners, columns)), shape=shape)
    free = len(x) - _rank(at, sizes, n_genes) - mixed
    if free < FEWEST_FREE:
        return None, f"{len(x):,} sets of {n_genes:,} genes are too few"
    residual = x - design @ lsmr(design, x, atol=1e-10, btol=1e-10, maxiter=20_000)[0]
    return (float(residual @ residual) / free) / (total / (len(x) - 1)), None


def _rank(genes: Ints, sizes: Ints, n_genes: int) -> int:
    """Return the rank of the sets' gene indicators; a bound unless all sets are pairs."""
    if (sizes != 2).any():
        return n_genes
    # Pairs are the edges of a graph: each connected component without an odd cycle lacks one rank.
    # Only such a component splits in two in the bipartite double cover.
    a, b = genes.reshape(-1, 2).T
    ends = {n_genes: (a, b), 2 * n_genes: (np.r_[a, b], np.r_[b, a] + n_genes)}
    single, double = (
        connected_components(csr_array((np.ones(len(at[0])), at), shape=(n, n)), directed=False)[0]
        for n, at in ends.items()
    )
    return int(n_genes - (double - single))


@dataclass(frozen=True)
class Ceiling:
    """The Pearson correlation that the true scores would have with the measured ones."""

    pearson: float | None
    noise: float | None  # mean variance of a test row's measurement about the truth, from repeats
    variance: float | None  # of the test rows' scores
    repeated_sets: int
    test_rows: int  # with a score


def replicate_ceiling(screen: Screen, rows: Ints, repeats: Screen | None = None) -> Ceiling:
    r"""Return the Pearson correlation attainable given the noise between repeats.

    With :math:`y_{si}` the i-th of :math:`n_s` rows of gene set s, itself the mean of
    :math:`k_{si}` replicates, the variance of one replicate is

    .. math::

        \hat\sigma^2 = \frac{\sum_s \sum_i k_{si} (y_{si} - \bar y_s)^2}{\sum_s (n_s - 1)}

    with :math:`\bar y_s` weighted by k. The noise of the test rows is
    :math:`\hat\sigma^2 \, \mathrm{mean}(1 / k)`, and the ceiling
    :math:`\sqrt{1 - \mathrm{noise} / \mathrm{var}(y)}`. It is too high after a merge by ``best-p``
    or if the screen lists only hits. ``repeats`` is the screen before repeats were merged.
    """
    before = screen if repeats is None else repeats
    y = before.column("score").astype(np.float64)
    known = np.isfinite(y)
    y, k = y[known], before.column("replicates")[known].astype(np.float64)
    _, key = np.unique(before.keys[known], return_inverse=True)
    phenotype = before.rows["phenotype"].rank("dense").to_numpy()[known].astype(np.int64)
    _, group = np.unique(key * (int(phenotype.max(initial=0)) + 1) + phenotype, return_inverse=True)
    n = np.bincount(group)
    mean = np.bincount(group, k * y) / np.bincount(group, k)
    squares = np.bincount(group, k * (y - mean[group]) ** 2)[n > 1]
    score = screen.column("score").astype(np.float64)[rows]
    known = np.isfinite(score)
    n_sets, n_rows = len(squares), int(known.sum())
    if min(n_sets, n_rows) < FEWEST_SETS:
        return Ceiling(None, None, None, n_sets, n_rows)
    share = float((1 / screen.column("replicates")[rows][known]).mean())
    noise = float(squares.sum() / (n[n > 1] - 1).sum()) * share
    variance = float(score[known].var())
    pearson = float(np.sqrt(1 - noise / variance)) if noise < variance else None
    return Ceiling(pearson, noise, variance, n_sets, n_rows)
