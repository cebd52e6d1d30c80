"""Resampling of gene sets, the same for all predictors, so that their differences are paired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray
from deltacell.errors import InputError

Doubles = npt.NDArray[np.float64]

ENOUGH_DEFINED = 0.95
"""The share of resamples in which a value must be defined for an interval to be given."""

_NUMBERS_A_BLOCK = 500_000


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are found: percentiles over resamples of whole gene sets.

    Parameters
    ----------
    resamples
        How many.
    level
        The share of them that an interval holds.
    seed
        Of all that is drawn.
    """

    resamples: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise InputError(f"{self.resamples} resamples were asked for; at least 1 is needed")
        if not 0 < self.level < 1:
            raise InputError(f"the level is {self.level}; expected between 0 and 1")
        if self.seed < 0:
            raise InputError(f"the seed is {self.seed}; it must not be negative")

    def weights(self, keys: AnyArray, name: str = "") -> Iterator[Doubles]:
        """Yield how often each row is in each resample, [b, rows] a block, `resamples` in all.

        As many gene sets as there are are drawn with replacement, and a set brings all its rows.
        What is drawn depends on the sets and not on the order of the rows.

        Parameters
        ----------
        keys
            One a row, equal for the same gene set.
        name
            Of what is resampled; another name draws anew.
        """
        sets, of_row = np.unique(keys, return_inverse=True)
        n = len(sets)
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        block = max(1, _NUMBERS_A_BLOCK // max(len(keys), 1))
        for start in range(0, self.resamples, block):
            wide = min(block, self.resamples - start)
            drawn = rng.integers(0, n, (wide, n))
            at = (drawn + n * np.arange(wide)[:, None]).ravel()
            counts = np.bincount(at, minlength=wide * n).reshape(wide, n)
            yield counts.astype(np.float64).take(of_row, axis=1)

    def interval(self, values: Doubles) -> tuple[float, float] | None:
        """Return the percentiles of resampled values, or None where too many are undefined.

        Parameters
        ----------
        values
            One a resample; NaN where undefined.
        """
        defined = values[np.isfinite(values)]
        if len(defined) < ENOUGH_DEFINED * len(values):
            return None
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail])
        return float(low), float(high)
