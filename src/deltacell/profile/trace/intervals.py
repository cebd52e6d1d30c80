"""Intervals of time, and how much of a window they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.profile.trace.trace import Ints


def merge(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the union of intervals as intervals that do not touch, by time."""
    lasting = end > begin
    begin, end = begin[lasting], end[lasting]
    if not len(begin):
        return begin, end
    reached = np.maximum.accumulate(end)
    first = np.ones(len(begin), dtype=bool)
    np.greater(begin[1:], reached[:-1], out=first[1:])
    last = np.append(first[1:], True)
    return begin[first], reached[last]


@dataclass(frozen=True, eq=False)
class Covered:
    """The union of intervals, asked how much of a window it covers.

    Parameters
    ----------
    begin, end
        Of the intervals of the union, int64 [m], by time, not touching.
    """

    begin: Ints
    end: Ints

    @classmethod
    def of(cls, begin: Ints, end: Ints) -> Covered:
        """Return the union of these intervals, given by beginning."""
        return cls(*merge(begin, end))

    def until(self, times: Ints) -> Ints:
        """Return how much is covered before each of these times, int64."""
        length = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        place = np.searchsorted(self.begin, times, side="right")
        over = np.zeros(len(times), dtype=np.int64)
        started = place > 0
        over[started] = np.maximum(self.end[place[started] - 1] - times[started], 0)
        covered: Ints = length[place] - over
        return covered

    def within(self, begin: Ints, end: Ints) -> Ints:
        """Return how much of each of these windows is covered, int64."""
        return self.until(end) - self.until(begin)
