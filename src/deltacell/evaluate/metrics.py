"""How well predictions fit what was measured, for many weightings of the rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints

Doubles = npt.NDArray[np.float64]

FEWEST_ROWS = 3
"""With fewer rows nothing is said."""

CONSTANT = "the predictions are all the same"
"""Why a predictor that says one thing of all rows has no correlation."""

Function = Callable[[Doubles, Doubles, Doubles], Doubles]


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
        From predictions [n], truth [n] and weights [n, b] to values [b]; NaN where undefined.
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
        x = np.asarray(prediction, dtype=np.float64)
        y = np.asarray(truth, dtype=np.float64)
        if self.undefined(x, y) is not None:
            return None
        value = float(self.function(x, y, np.ones((len(y), 1)))[0])
        return value if np.isfinite(value) else None


def is_constant(values: Doubles) -> bool:
    """Whether values differ by no more than the rounding of float32, in which models compute."""
    return bool(np.ptp(values) <= 4 * np.finfo(np.float32).eps * np.abs(values).max())


def pearson(prediction: Doubles, truth: Doubles, weights: Doubles) -> Doubles:
    """Return Pearson's correlation, ``cov(x, y) / sqrt(var(x) var(y))``, weighted; [b].

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [n, b].
    """
    x, y = _standard(prediction), _standard(truth)
    mean = np.stack([x, y, x * x, y * y, x * y]) @ weights / weights.sum(axis=0)
    covariance = mean[4] - mean[0] * mean[1]
    return _correlation(covariance, mean[2] - mean[0] ** 2, mean[3] - mean[1] ** 2)


def spearman(prediction: Doubles, truth: Doubles, weights: Doubles) -> Doubles:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing theirs; [b].

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [n, b]; with whole numbers, the ranks are those among the rows
        written out so often.
    """
    middle = (weights.sum(axis=0) + 1) / 2
    x = midranks(prediction, weights) - middle
    y = midranks(truth, weights) - middle
    total = (middle * 2 - 1) ** 3
    covariance = np.einsum("nb,nb,nb->b", weights, x, y) / total
    of_x = np.einsum("nb,nb,nb->b", weights, x, x) / total
    of_y = np.einsum("nb,nb,nb->b", weights, y, y) / total
    return _correlation(covariance, of_x, of_y)


def mse(prediction: Doubles, truth: Doubles, weights: Doubles) -> Doubles:
    """Return the mean of ``(x - y)^2``, weighted; [b].

    Parameters
    ----------
    prediction, truth
        One number a row, [n].
    weights
        How often each row counts, [n, b].
    """
    squares: Doubles = (prediction - truth) ** 2 @ weights / weights.sum(axis=0)
    return squares


def auroc(prediction: Doubles, positive: Doubles, weights: Doubles) -> Doubles:
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
        How often each row counts, [n, b].
    """
    positives = positive @ weights
    others = weights.sum(axis=0) - positives
    ranks = np.einsum("n,nb,nb->b", positive, weights, midranks(prediction, weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Doubles = (ranks - positives * (positives + 1) / 2) / (positives * others)
    return share


def aupr(prediction: Doubles, positive: Doubles, weights: Doubles) -> Doubles:
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
        How often each row counts, [n, b].
    """
    order, starts = _ties(-prediction)
    found = _sums(weights[order] * positive[order, None], starts)
    seen = np.cumsum(_sums(weights[order], starts), axis=0)
    all_found = np.cumsum(found, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(seen > 0, all_found / seen, 0.0)
        area: Doubles = (found * precision).sum(axis=0) / all_found[-1]
    none_of_a_class = (all_found[-1] == 0) | (all_found[-1] == seen[-1])
    return np.where(none_of_a_class, np.nan, area)


def midranks(values: Doubles, weights: Doubles) -> Doubles:
    """Return the rank of each row among the rows written out ``weights`` times, [n, b].

    Ranks begin at 1, and equal values share the mean of theirs.

    Parameters
    ----------
    values
        One number a row, [n].
    weights
        How often each row counts, [n, b].
    """
    order, starts = _ties(values)
    size = _sums(weights[order], starts)
    rank = np.cumsum(size, axis=0) - (size - 1) / 2
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return rank[group]


def _ties(values: Doubles) -> tuple[Ints, Ints]:
    """Return the ascending order of values, and where in it each distinct value begins."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def _sums(rows: Doubles, starts: Ints) -> Doubles:
    if len(starts) == len(rows):
        return rows
    sums: Doubles = np.add.reduceat(rows, starts, axis=0)
    return sums


def _standard(values: Doubles) -> Doubles:
    # Moments about the mean and in units of the spread, so that little is lost to rounding.
    centred = values - values.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    standard: Doubles = centred / spread if spread > 0 else centred
    return standard


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
