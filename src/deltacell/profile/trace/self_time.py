"""Self time: of every moment of a thread, the one event that it belongs to.

A moment belongs to the event that began last among those that are open then. For events that nest
that is the innermost one. An event that begins inside another and ends after it takes over at its
beginning, and the other is cut there. So the self times of a thread add up to the union of its
events, whatever they look like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


@dataclass(frozen=True, eq=False)
class Nesting:
    """How the events of a trace lie in one another.

    Parameters
    ----------
    lane
        The thread of each event, int32 [n]. Collectives that run beside the thread that started
        them, such as ``gloo:all_reduce``, have lanes of their own, from ``len(trace.threads)`` on.
    parent
        The event that each lies in, int32 [n]; `NOTHING` at the top. An event that begins inside
        another and ends after it lies in it where at least half of it does.
    within
        The event that goes on when this one ends, int32 [n]; `NOTHING` where none does.
    cut
        The end of each event after cutting, int64 [n].
    self_time
        Nanoseconds of each event that belong to it and to none inside it, int64 [n].
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

    Parameters
    ----------
    trace
        Events by beginning, the longest first among those that begin together.

    Returns
    -------
    Parents and self times. With end e' after cutting, the self time of an event is
    e' - begin - sum of (e' - begin) of the events directly inside it.
    """
    count = len(trace)
    lane = _lanes(trace)
    parent = np.full(count, NOTHING, dtype=np.int32)
    within = np.full(count, NOTHING, dtype=np.int32)
    cut = trace.begin + np.maximum(trace.duration, 0)
    own = np.zeros(count, dtype=np.int64)
    residual = 0
    order = np.argsort(lane, kind="stable")
    bounds = np.flatnonzero(np.diff(lane[order])) + 1
    for rows in np.split(order, bounds):
        if not len(rows):
            continue
        begin, end = trace.begin[rows], cut[rows]
        ends, outer, inner = _laminar(begin, end)
        times = _own(begin, ends, inner)
        parent[rows] = np.where(outer >= 0, rows[outer], NOTHING)
        within[rows] = np.where(inner >= 0, rows[inner], NOTHING)
        cut[rows] = ends
        own[rows] = times
        residual = max(residual, abs(int(times.sum()) - union(begin, end)))
    if residual or (count and int(own.min()) < 0):
        raise AssertionError(f"self times miss the union of the events by {residual} ns")
    return Nesting(lane, parent, within, cut, own, residual)


def self_times(trace: Trace) -> Ints:
    """Return the nanoseconds of each event that belong to none inside it, int64 [n]."""
    return nest(trace).self_time


def parent_rows(trace: Trace) -> Codes:
    """Return the row of the event that each lies in, int32 [n]; `NOTHING` at the top."""
    return nest(trace).parent


def union(begin: Ints, end: Ints) -> int:
    """Return how much time is covered by at least one of these intervals, by beginning."""
    if not len(begin):
        return 0
    reached = np.maximum.accumulate(end)
    fresh = np.maximum(begin[1:], reached[:-1])
    return int(end[0] - begin[0] + np.maximum(reached[1:] - fresh, 0).sum())


def moments(*times: Ints) -> Ints:
    """Return all these times once each, rising."""
    together = np.sort(np.concatenate(times))
    fresh = np.ones(len(together), dtype=bool)
    # numpy's own unique hashes, and is many times slower on millions of times.
    np.not_equal(together[1:], together[:-1], out=fresh[1:])
    return together[fresh]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Which event every moment belongs to.

    Parameters
    ----------
    times
        Where it changes, int64 [k], rising.
    row
        The event from each time to the next, int32 [k]; `NOTHING` where none is open, and after
        the last.
    """

    times: Ints
    row: Codes

    def at(self, times: Ints) -> Codes:
        """Return the event that each of these moments belongs to, int32."""
        if not len(self.times):
            return np.full(len(times), NOTHING, dtype=np.int32)
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place >= 0, self.row[place], NOTHING).astype(np.int32)


def timeline(trace: Trace, nesting: Nesting, lane: int) -> Timeline:
    """Return which event of a lane every moment belongs to."""
    rows = np.flatnonzero((nesting.lane == lane) & (nesting.cut > trace.begin))
    if not len(rows):
        return Timeline(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
    begin = trace.begin[rows]
    times = moments(begin, nesting.cut[rows])
    row = rows[np.searchsorted(begin, times, side="right") - 1].astype(np.int32)
    ended = np.flatnonzero(nesting.cut[row] <= times)
    while len(ended):
        row[ended] = nesting.within[row[ended]]
        ended = ended[row[ended] >= 0]
        ended = ended[nesting.cut[row[ended]] <= times[ended]]
    return Timeline(times, row)


_BESIDE = re.compile(r"(gloo|mpi|ucc|xccl):")


def _lanes(trace: Trace) -> Codes:
    """Return the thread of each event, or a lane beside it."""
    beside = np.array([bool(_BESIDE.match(name)) for name in trace.names], dtype=bool)
    if not beside.any():
        return trace.thread
    moved = beside[trace.name] & (trace.kind == Kind.annotation)
    return np.where(moved, trace.thread + len(trace.threads), trace.thread).astype(np.int32)


def _laminar(begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut what overlaps without nesting; return the ends, the parents, and what goes on after."""
    parent = _parents(begin, end)
    inside = parent >= 0
    if (end[inside] <= end[parent[inside]]).all():
        return end, parent, parent
    ends, called_from = _cut(begin, end)
    within = _parents(begin, ends)
    return ends, np.where(called_from >= 0, called_from, within), within


def _parents(begin: Ints, end: Ints) -> Ints:
    """Return the place of the innermost event that each lies in; right where all of them nest.

    Where they do not, an event that ends after its parent tells.
    """
    parent = np.full(len(begin), NOTHING, dtype=np.int64)
    lasting = np.flatnonzero(end > begin)
    starts, stops = begin[lasting], end[lasting]
    found = np.full(len(lasting), NOTHING, dtype=np.int32)
    depth = np.arange(len(lasting), dtype=np.int32)
    depth -= np.searchsorted(np.sort(stops), starts, side="right").astype(np.int32)
    by_depth = np.argsort(depth, kind="stable").astype(np.int32)
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for above, level in pairwise(levels):
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


def _cut(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
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
    return np.array(cut, dtype=np.int64), np.array(called_from, dtype=np.int64)


def _own(begin: Ints, end: Ints, within: npt.NDArray[np.int64]) -> Ints:
    """Return what is left of each event without those directly inside it."""
    span = end - begin
    inside = within >= 0
    # Sums of nanoseconds are whole numbers far below 2**53, so floats hold them exactly.
    taken = np.bincount(within[inside], weights=span[inside], minlength=len(span))
    return span - taken.astype(np.int64)
