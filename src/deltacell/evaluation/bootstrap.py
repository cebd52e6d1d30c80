"""Intervals of metrics, over resamples of the genes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from deltacell.base.arrays import AnyArray, Doubles

ENOUGH_DEFINED = 0.95  # the share of resamples in which a value with an interval is defined
_NUMBERS_PER_BLOCK = 500_000


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
            reasons = [reason for _, reason in measured if reason]
            return cls(None, reason=reasons[0], seeds=seeds)
        deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(float(np.mean(known)), seeds=seeds, seed_deviation=deviation)


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
        distinct, numbers = np.unique(units, return_inverse=True)
        units_of_row = numbers.reshape(units.shape)
        n_padding = int((distinct[:1] == -1).sum())
        n_units = len(distinct) - n_padding
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        block = max(1, _NUMBERS_PER_BLOCK // max(len(units), 1))
        for start in range(0, self.resamples, block):
            n_resamples = min(block, self.resamples - start)
            counts = _counts_of_draw(rng, n_resamples, n_units)
            # Padding is the smallest and so comes first; its factor is 1.
            counts = np.concatenate([np.ones((n_resamples, n_padding)), counts], axis=1)
            product = counts.take(units_of_row[:, 0], axis=1)
            for column in units_of_row.T[1:]:
                product *= counts.take(column, axis=1)
            yield product

    def with_interval(self, estimate: Estimate, values: Doubles) -> Estimate:
        """Return an estimate with the percentiles of its resampled values, or why it has none."""
        if estimate.value is None:
            return estimate
        defined = values[np.isfinite(values)]
        n_undefined = len(values) - len(defined)
        if len(defined) < ENOUGH_DEFINED * len(values):
            reason = f"it is undefined in {n_undefined:,} of {len(values):,} resamples"
            return replace(estimate, reason=reason)
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail]).tolist()
        return replace(estimate, low=low, high=high)


def _counts_of_draw(rng: np.random.Generator, n_resamples: int, n_units: int) -> Doubles:
    """Draw as many units as there are, with replacement; return the counts [resamples, units]."""
    drawn = rng.integers(0, n_units, (n_resamples, n_units))
    first_of_resample = n_units * np.arange(n_resamples)[:, None]
    places = (drawn + first_of_resample).ravel()
    counts = np.bincount(places, minlength=n_resamples * n_units)
    return counts.reshape(n_resamples, n_units).astype(np.float64)
