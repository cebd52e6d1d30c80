"""Intervals by resampling genes, and metrics of several predictors over the same resamples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from deltacell.arrays import AnyArray, Doubles
from deltacell.errors import InputError
from deltacell.evaluate.evaluation import Differences, Estimate, Scores
from deltacell.evaluate.metrics import Column, Metric, Weights

#: The share of resamples in which a value must be defined for an interval to be given.
ENOUGH_DEFINED = 0.95

_NUMBERS_A_BLOCK = 500_000


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are found: percentiles over resamples of the genes.

    Gene sets that share a gene are not independent: if a predictor is wrong about a gene, it is
    wrong about all its sets. So genes are drawn with replacement, and a set counts as often as the
    product of how often its genes were drawn (the pigeonhole bootstrap of Owen, 2007). Intervals
    are about right where errors are shared by gene. They are conservative where errors are
    independent: up to the square root of 3 too wide for pairs, and of 7 for triples.

    Parameters
    ----------
    resamples
        How many.
    level
        The share of them that an interval holds.
    seed
        Random seed.
    """

    resamples: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1 or not 0 < self.level < 1 or self.seed < 0:
            raise InputError(
                f"{self} is not possible: at least 1 resample, a level between 0 and 1 and a seed "
                "of at least 0 are required",
                code="invalid-bootstrap",
            )

    def weights(self, units: AnyArray, name: str = "") -> Iterator[Doubles]:
        """Yield how often each row counts in each resample, [b, rows] per block.

        As many units as there are different ones are drawn with replacement. What is drawn depends
        on the units and not on the order of the rows.
        """
        columns = units[:, None] if units.ndim == 1 else units
        distinct, flat = np.unique(columns, return_inverse=True)
        of_row = flat.reshape(columns.shape)
        n_padding = int(units.ndim == 2 and distinct[0] == -1) if len(distinct) else 0
        n = len(distinct) - n_padding
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        block = max(1, _NUMBERS_A_BLOCK // max(len(columns), 1))
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


@dataclass
class _OneSeed:
    """One metric of one seed of a predictor, and its values in the resamples."""

    metric: Metric
    prediction: Column
    truth: Column
    value: float | None
    reason: str | None
    blocks: list[Doubles] = field(default_factory=list)


class Comparison:
    """Metrics of several predictors, and of several seeds of each, over the same resamples."""

    def __init__(self) -> None:
        self._each: dict[str, dict[str, list[_OneSeed]]] = {}

    def add(
        self,
        name: str,
        metric: Metric,
        prediction: Column,
        truth: Column,
        weight: Doubles | None = None,
    ) -> None:
        """Add a metric of one seed of a predictor, in which each row counts `weight` times."""
        value = metric.value(prediction, truth, weight)
        reason = metric.undefined(prediction.values, truth.values)
        of_seeds = self._each.setdefault(name, {}).setdefault(metric.name, [])
        of_seeds.append(_OneSeed(metric, prediction, truth, value, reason))

    def resample(self, weights: Mapping[str, Weights]) -> None:
        """Measure on a block of resamples, whose weights are given by what a metric is of."""
        for one in (one for of in self._each.values() for seeds in of.values() for one in seeds):
            mine = weights[one.metric.of]
            values = np.full(len(mine.total), np.nan)
            if one.reason is None:
                values = one.metric.function(one.prediction, one.truth, mine)
            one.blocks.append(values)

    def result(self, bootstrap: Bootstrap) -> tuple[Scores, Differences]:
        """Return all metrics and all paired differences, with intervals.

        With several seeds a metric is the mean over them of each seed's metric.
        """
        scores: dict[str, dict[str, Estimate]] = {}
        drawn: dict[str, dict[str, Doubles]] = {}
        for name, of_name in self._each.items():
            scores[name], drawn[name] = {}, {}
            for metric, seeds in of_name.items():
                over = np.mean([np.concatenate(one.blocks) for one in seeds], axis=0)
                drawn[name][metric] = over
                scores[name][metric] = _estimate(seeds, over, bootstrap)

        def difference(one: str, other: str, metric: str) -> Estimate:
            for name in (one, other):
                if scores[name][metric].value is None:
                    reason = f"{name}: {scores[name][metric].reason}"
                    return Estimate(None, None, None, reason=reason)
            value = (scores[one][metric].value or 0.0) - (scores[other][metric].value or 0.0)
            return _with_interval(value, drawn[one][metric] - drawn[other][metric], bootstrap)

        differences = {
            one: {
                other: {metric: difference(one, other, metric) for metric in scores[one]}
                for other in scores
                if other != one
            }
            for one in scores
        }
        return scores, differences


def _estimate(of_seeds: list[_OneSeed], drawn: Doubles, bootstrap: Bootstrap) -> Estimate:
    values = tuple(one.value for one in of_seeds)
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        reason = next(one.reason for one in of_seeds if one.value is None)
        return Estimate(None, None, None, reason=reason or "it is not a number", seeds=values)
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return _with_interval(float(np.mean(known)), drawn, bootstrap, values, deviation)


def _with_interval(
    value: float,
    drawn: Doubles,
    bootstrap: Bootstrap,
    seeds: tuple[float | None, ...] = (),
    deviation: float | None = None,
) -> Estimate:
    interval = bootstrap.interval(drawn)
    if interval is None:
        undefined = int((~np.isfinite(drawn)).sum())
        reason = f"it is not defined in {undefined:,} of {len(drawn):,} resamples"
        return Estimate(value, None, None, reason, seeds, deviation)
    return Estimate(value, *interval, None, seeds, deviation)
