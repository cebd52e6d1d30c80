"""Self time: assign every moment of a thread to exactly one event.

A moment belongs to the open event that began last, which is the innermost one if events nest.
If an event begins inside another and ends after it, the other one is cut at that beginning. So
the self times of a thread always add up to the union of its events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deltacell.base.arrays import Indices, Ints, distinct
from deltacell.profile.trace.ancestors import first_open
from deltacell.profile.trace.intervals import Covered
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

_MANY_LEVELS = 1_000  # with more, going through events is faster than going through levels


@dataclass(frozen=True, eq=False)
class Nesting:
    """How the events of a trace nest, with one entry per event."""

    # The thread. Collectives that run in parallel are in separate lanes, from len(threads) on.
    lane: Indices
    # The enclosing event. It may end before its child if it holds at least half of it.
    parent: Indices
    within: Indices  # the event that continues when this one ends
    cut: Ints  # the end after cutting
    self_time: Ints


def nest(trace: Trace) -> Nesting:
    """Find which event encloses which, and the self time of each."""
    count = len(trace)
    lane = _lanes(trace)
    parent = np.full(count, NOTHING, dtype=np.int32)
    within = np.full(count, NOTHING, dtype=np.int32)
    cut = trace.begin + np.maximum(trace.duration, 0)
    own = np.zeros(count, dtype=np.int64)
    for rows in _by_lane(lane):
        begin = trace.begin[rows]
        end = cut[rows]
        outer = inner = _parents(begin, end)
        ends = end
        if (end > np.where(outer >= 0, end[outer], np.iinfo(np.int64).max)).any():
            ends, called_from = _cut(begin, end)
            inner = _parents(begin, ends)
            outer = np.where(called_from >= 0, called_from, inner)
        times = ends - begin
        inside = inner >= 0
        # Floats hold sums of nanoseconds below 2**53 exactly.
        taken = np.bincount(inner[inside], weights=times[inside], minlength=len(times))
        times -= taken.astype(np.int64)
        parent[rows] = np.where(outer >= 0, rows[outer], NOTHING)
        within[rows] = np.where(inside, rows[inner], NOTHING)
        cut[rows], own[rows] = ends, times
        if int(times.sum()) != Covered.union(begin, end).total or int(times.min()) < 0:
            raise AssertionError("self times of a thread do not add up to the union of its events")
    return Nesting(lane, parent, within, cut, own)


def _lanes(trace: Trace) -> Indices:
    """Return the lane of each event: its thread, or one beside it for collectives of the host."""
    beside = trace.named(re.compile(r"(gloo|mpi|ucc|xccl):").match)
    beside &= trace.kind == Kind.annotation
    lane: Indices = np.where(beside, trace.thread + np.int32(len(trace.threads)), trace.thread)
    return lane


@dataclass(frozen=True, eq=False)
class Timeline:
    """The event from each time to the next, or `NOTHING`; the first time is before all others."""

    times: Ints
    row: Indices

    def at(self, times: Ints) -> Indices:
        """Return the event that is open at each time, or `NOTHING`."""
        return self.row[np.searchsorted(self.times, times, side="right") - 1]


def timeline(trace: Trace, nesting: Nesting, lane: int) -> Timeline:
    """Return which event of a thread is the innermost at each time."""
    rows = np.flatnonzero((nesting.lane == lane) & (nesting.cut > trace.begin)).astype(np.int32)
    begin = trace.begin[rows]
    times, _ = distinct(np.concatenate([begin, nesting.cut[rows]]))
    began_last = np.searchsorted(begin, times, side="right") - 1
    within = nesting.within[rows]
    parent = np.where(within >= 0, np.searchsorted(rows, within), NOTHING)
    place = first_open(began_last, times, nesting.cut[rows], parent)
    row = np.where(place >= 0, rows[place], np.int32(NOTHING))
    before = np.iinfo(np.int64).min
    return Timeline(np.append(before, times), np.append(np.int32(NOTHING), row))


def _by_lane(lane: Indices) -> Iterator[Indices]:
    count = int(lane.max()) + 1 if len(lane) else 0
    # NumPy sorts 16-bit numbers many times faster.
    short = lane.astype(np.int16) if count < 2**15 else lane
    order = np.argsort(short, kind="stable").astype(np.int32)
    end = 0
    for size in np.bincount(lane, minlength=count).tolist():
        begin = end
        end = end + size
        if size:
            yield order[begin:end]


def _parents(begin: Ints, end: Ints) -> Indices:
    """Return the innermost event around each; this is only correct if all events nest."""
    parent = np.full(len(begin), NOTHING, dtype=np.int32)
    lasting = np.flatnonzero(end > begin).astype(np.int32)
    starts = begin[lasting]
    stops = end[lasting]
    ended = np.searchsorted(np.sort(stops), starts, side="right").astype(np.int32)
    depth = np.arange(len(lasting), dtype=np.int32) - ended
    is_deep = len(lasting) > 0 and int(depth.max()) > _MANY_LEVELS
    over = _parents_one_by_one(starts, stops) if is_deep else _parents_by_level(depth)
    parent[lasting] = np.where(over >= 0, lasting[over], NOTHING)
    instants = np.flatnonzero(end <= begin)
    if len(lasting) and len(instants):
        times = begin[instants]
        began_last = np.searchsorted(starts, times, side="right") - 1
        place = first_open(began_last, times, stops, over)
        parent[instants] = np.where(place >= 0, lasting[place], NOTHING)
    return parent


def _parents_by_level(depth: Indices) -> Indices:
    """Return the innermost event around each, given how many are open; one round per level."""
    parent = np.full(len(depth), NOTHING, dtype=np.int32)
    for above, level in pairwise(_by_lane(depth)):
        parent[level] = above[np.searchsorted(above, level) - 1]
    return parent


def _parents_one_by_one(begin: Ints, end: Ints) -> Indices:
    """Return the same for any number of levels, event by event."""
    ends = end.tolist()
    parent = []
    open_rows: list[int] = []
    for row, start in enumerate(begin.tolist()):
        while open_rows and ends[open_rows[-1]] <= start:
            open_rows.pop()
        parent.append(open_rows[-1] if open_rows else NOTHING)
        open_rows.append(row)
    return np.array(parent, dtype=np.int32)


def _cut(begin: Ints, end: Ints) -> tuple[Ints, Indices]:
    """End every event where a later one begins that outlasts it.

    Returns the ends and, for an event that cuts others, the innermost one that holds half of it.
    """
    begins = begin.tolist()
    ends = end.tolist()
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
