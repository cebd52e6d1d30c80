"""Self time: of every moment of a thread, the one event that it belongs to.

A moment belongs to the event that began last among those that are open then. For events that nest
that is the innermost one. An event that begins inside another and ends after it takes over at its
beginning, and the other is cut there. So the self times of a thread add up to the union of its
events, whatever they look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


@dataclass(frozen=True, eq=False)
class Nesting:
    """How the events of a trace lie in one another; arrays have one entry per event.

    Parameters
    ----------
    lane
        The thread, int32 [n]. Collectives that run beside the thread that started them, such as
        ``gloo:all_reduce``, have lanes of their own, from ``len(trace.threads)`` on.
    parent
        The event that each lies in, int32 [n]; `NOTHING` at the top. An event that begins inside
        another and ends after it lies in it where at least half of it does.
    within
        The event that goes on when this one ends, int32 [n]; `NOTHING` where none does.
    cut
        The end after cutting, int64 [n].
    self_time
        Nanoseconds that belong to the event and to none inside it, int64 [n].
    residual
        Nanoseconds by which self times and the union of events differ, the worst of all lanes.
    """

    lane: Codes
    parent: Codes
    within: Codes
    cut: Ints
    self_time: Ints
    residual: int


def nest(trace: Trace) -> Nesting:
    """Find what lies in what, and the self times.

    Returns
    -------
    Parents and self times. With end e' after cutting, the self time of an event is
    e' - begin - sum of (e' - begin) of the events directly inside it.
    """
    count = len(trace)
    lane = _lanes(trace)
    parent = np.full(count, NOTHING, dtype=np.int32)
    within = parent
    cut = trace.begin + np.maximum(trace.duration, 0)
    own = np.zeros(count, dtype=np.int64)
    residual = 0
    for rows in _by_lane(lane):
        begin, end = trace.begin[rows], cut[rows]
        ends, outer, inner = _laminar(begin, end)
        times = _own(begin, ends, inner)
        if inner is not outer and within is parent:
            # They are one array for as long as everything nests.
            within = parent.copy()
        parent[rows] = np.where(outer >= 0, rows[outer], NOTHING)
        if within is not parent:
            within[rows] = np.where(inner >= 0, rows[inner], NOTHING)
        cut[rows] = ends
        own[rows] = times
        residual = max(residual, abs(int(times.sum()) - union(begin, end)))
    if residual or (count and int(own.min()) < 0):
        raise AssertionError(f"self times miss the union of the events by {residual} ns")
    return Nesting(lane, parent, within, cut, own, residual)


def union(begin: Ints, end: Ints) -> int:
    """Return how much time is covered by at least one of these intervals, by beginning."""
    if not len(begin):
        return 0
    reached = np.maximum.accumulate(end)
    fresh = np.maximum(begin[1:], reached[:-1])
    np.subtract(reached[1:], fresh, out=fresh)
    np.maximum(fresh, 0, out=fresh)
    return int(end[0] - begin[0] + fresh.sum())


def moments(*times: Ints) -> Ints:
    """Return all these times once each, rising."""
    together = np.concatenate(times)
    together.sort()
    fresh = np.ones(len(together), dtype=bool)
    # numpy's own unique hashes, and is many times slower on millions of times.
    np.not_equal(together[1:], together[:-1], out=fresh[1:])
    return together[fresh]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Which event every moment belongs to: from each time to the next, or `NOTHING`."""

    times: Ints
    row: Codes

    def at(self, times: Ints) -> Codes:
        """Return the event that each of these moments belongs to, int32."""
        if not len(self.times):
            return np.full(len(times), NOTHING, dtype=np.int32)
        place = np.searchsorted(self.times, times, side="right") - 1
        row = self.row[place]
        row[place < 0] = NOTHING
        return row


def timeline(trace: Trace, nesting: Nesting, lane: int) -> Timeline:
    """Return which event of a lane every moment belongs to."""
    rows = np.flatnonzero((nesting.lane == lane) & (nesting.cut > trace.begin)).astype(np.int32)
    if not len(rows):
        return Timeline(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
    begin = trace.begin[rows]
    times = moments(begin, nesting.cut[rows])
    row = np.empty(len(times), dtype=np.int32)
    for part in parts(len(times)):
        row[part] = _open_row(nesting, rows, begin, times[part])
    return Timeline(times, row)


def parts(count: int) -> Iterator[slice]:
    """Give so many rows in parts, so that what is made from each stays small."""
    for begin in range(0, count, _PART):
        yield slice(begin, min(begin + _PART, count))


_PART = 1 << 17
_BESIDE = re.compile(r"(gloo|mpi|ucc|xccl):")


def _lanes(trace: Trace) -> Codes:
    moved = trace.named(_BESIDE.match) & (trace.kind == Kind.annotation)
    if not moved.any():
        return trace.thread
    return np.where(moved, trace.thread + len(trace.threads), trace.thread).astype(np.int32)


def _by_lane(lane: Codes) -> Iterator[Codes]:
    count = int(lane.max()) + 1 if len(lane) else 0
    # Short numbers are sorted many times faster.
    short = lane.astype(np.int16) if count < 2**15 else lane
    order = np.argsort(short, kind="stable").astype(np.int32)
    end = 0
    for size in np.bincount(lane, minlength=count).tolist():
        begin, end = end, end + size
        if size:
            yield order[begin:end]


def _open_row(nesting: Nesting, rows: Codes, begin: Ints, times: Ints) -> Codes:
    row = rows[np.searchsorted(begin, times, side="right") - 1]
    ended = np.flatnonzero(nesting.cut[row] <= times)
    while len(ended):
        row[ended] = nesting.within[row[ended]]
        ended = ended[row[ended] >= 0]
        ended = ended[nesting.cut[row[ended]] <= times[ended]]
    return row


def _laminar(begin: Ints, end: Ints) -> tuple[Ints, Codes, Codes]:
    parent = _parents(begin, end)
    if all(_fits(end, parent, part) for part in parts(len(end))):
        return end, parent, parent
    ends, called_from = _cut(begin, end)
    within = _parents(begin, ends)
    return ends, np.where(called_from >= 0, called_from, within), within


def _fits(end: Ints, parent: Codes, part: slice) -> bool:
    above = parent[part]
    return bool(((above < 0) | (end[part] <= end[above])).all())


def _parents(begin: Ints, end: Ints) -> Codes:
    """Return the place of the innermost event that each lies in; right where all of them nest.

    Where they do not, an event that ends after its parent tells.
    """
    parent = np.full(len(begin), NOTHING, dtype=np.int32)
    lasting = np.flatnonzero(end > begin).astype(np.int32)
    starts, stops = (begin, end) if len(lasting) == len(begin) else (begin[lasting], end[lasting])
    found = np.full(len(lasting), NOTHING, dtype=np.int32)
    depth = np.arange(len(lasting), dtype=np.int32)
    ordered = np.sort(stops)
    for part in parts(len(starts)):
        depth[part] -= np.searchsorted(ordered, starts[part], side="right")
    del ordered
    for above, level in pairwise(_by_lane(depth)):
        found[level] = above[np.searchsorted(above, level) - 1]
    parent[lasting] = np.where(found >= 0, lasting[found], NOTHING)
    moments = np.flatnonzero(end <= begin)
    if len(moments) and len(lasting):
        place = np.searchsorted(starts, begin[moments], side="right") - 1
        while True:
            over = np.flatnonzero((place >= 0) & (stops[place] <= begin[moments]))
            if not len(over):
                break
            place[over] = found[place[over]]
        parent[moments] = np.where(place >= 0, lasting[place], NOTHING)
    return parent


def _cut(begin: Ints, end: Ints) -> tuple[Ints, Codes]:
    """End every event where a later one begins that outlasts it.

    Returns
    -------
    The ends; and of an event that cuts others the innermost of them that holds half of it.
    """
    begins, ends = begin.tolist(), end.tolist()
    cut = list(ends)
    called_from = [NOTHING] * len(begins)
    open_rows: list[int] = []
    for row, (start, stop) in enumerate(zip(begins, ends, strict=True)):
        while open_rows and ends[open_rows[-1]] <= start:
            open_rows.pop()
        if start == stop:
            continue
        while open_rows and ends[open_rows[-1]] < stop:
            other = open_rows.pop()
            cut[other] = start
            if called_from[row] == NOTHING and 2 * (ends[other] - start) >= stop - start:
                called_from[row] = other
        open_rows.append(row)
    return np.array(cut, dtype=np.int64), np.array(called_from, dtype=np.int32)


def _own(begin: Ints, end: Ints, within: Codes) -> Ints:
    own = end - begin
    inside = within >= 0
    # Sums of nanoseconds are whole numbers far below 2**53, so floats hold them exactly.
    taken = np.bincount(within[inside], weights=own[inside], minlength=len(own))
    for part in parts(len(own)):
        own[part] -= taken[part].astype(np.int64)
    return own


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
