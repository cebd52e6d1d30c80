"""Unions of intervals of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import Ints, offsets_of


@dataclass(frozen=True, eq=False)
class Covered:
    """A union of intervals, as sorted intervals that do not touch."""

    begin: Ints
    end: Ints

    @classmethod
    def union(cls, begin: Ints, end: Ints) -> Covered:
        """Return the union of some intervals."""
        lasting = end > begin
        begin = begin[lasting]
        end = end[lasting]
        reached = np.maximum.accumulate(end)
        apart = begin[1:] > reached[:-1]
        ends = np.append(reached[:-1][apart], reached[-1:])
        return cls(np.append(begin[:1], begin[1:][apart]), ends)

    @property
    def total(self) -> int:
        """The nanoseconds of all intervals together."""
        return int((self.end - self.begin).sum())

    def until(self, times: Ints) -> Ints:
        """Return the nanoseconds that are covered before each time."""
        length = offsets_of(self.end - self.begin)
        place = np.searchsorted(self.begin, times, side="right")
        # No interval ends before the first one.
        ends = np.append(np.iinfo(np.int64).min, self.end)
        covered: Ints = length[place] - np.maximum(ends[place], times) + times
        return covered

    def within(self, begin: Ints, end: Ints) -> Ints:
        """Return the nanoseconds that are covered between each begin and end."""
        return self.until(end) - self.until(begin)
