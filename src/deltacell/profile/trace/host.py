"""The host's time: what every moment of a step is spent on, by the names of events.

This is the time of the thread that runs the steps. While that thread only waits for the threads of
the backward, the time is theirs; while it waits for a collective of the host, it is communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints
from deltacell.profile.trace.categories import (
    Categories,
    Category,
    categories,
    is_collective,
    is_loader,
    nearest,
    own_categories,
)
from deltacell.profile.trace.host_names import names_of_pieces
from deltacell.profile.trace.intervals import Covered
from deltacell.profile.trace.self_time import Nesting, Timeline, timeline
from deltacell.profile.trace.steps import Pieces, Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

# The longest pause between two operators that belongs to the forward: this share of a step, within
# bounds in nanoseconds.
SHORTEST_PAUSE = 100_000
LONGEST_PAUSE = 500_000
SHARE_PAUSE = 0.02


def by_time(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the total ``time`` and the ``count`` of rows by keys, the longest time first."""
    count = pl.len().cast(pl.Int64).alias("count")
    sums = frame.group_by(*keys).agg(count, pl.sum("time"))
    is_descending = [True] + [False] * len(keys)
    return sums.sort("time", *keys, descending=is_descending)


@dataclass(frozen=True, eq=False)
class HostTime:
    """Consecutive pieces of time that fill all steps, with one entry per piece."""

    begin: Ints
    end: Ints
    row: Indices  # the event that the piece belongs to, or NOTHING
    category: Categories
    step: Indices  # the index of the step
    name: Indices  # what the host did, as an index into names
    names: list[str]  # human-readable
    loader: Ints  # nanoseconds of each step spent in the loader
    is_call: Bools  # the piece is Python that counts for the operator that it calls
    helpers: tuple[int, ...]  # the threads that ran the backward
    events: Categories  # the category of each event of the trace, or NOTHING

    def covered(self, which: Bools) -> Covered:
        """Return the time of the pieces that are chosen."""
        return Covered.union(self.begin[which], self.end[which])

    def between(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the pieces between two times, and the nanoseconds of each within them."""
        first = int(np.searchsorted(self.end, begin, side="right"))
        last = int(np.searchsorted(self.begin, end, side="left"))
        places = np.arange(first, max(first, last))
        begin_inside = np.maximum(self.begin[places], begin)
        end_inside = np.minimum(self.end[places], end)
        return places, end_inside - begin_inside

    def spent(self, steps: Steps) -> pl.DataFrame:
        """Return the time in counted steps and the ``count`` of events by name and category."""
        names = pl.Series(self.names, dtype=pl.String)
        titles = pl.Series([category.title for category in Category])
        row = np.where(self.is_call, np.int32(NOTHING), self.row)
        time = self.end - self.begin
        columns = {"name": self.name, "category": self.category, "row": row, "time": time}
        counted = pl.DataFrame(columns).filter(pl.Series(steps.counted[self.step]))
        # Pieces without an event are one together, unless they count for an operator.
        events = pl.col("row").filter(pl.col("row") >= 0)
        n_events = events.n_unique().clip(1).cast(pl.Int64)
        sums = counted.group_by("name", "category").agg(n_events.alias("count"), pl.sum("time"))
        with_names = sums.with_columns(
            name=pl.lit(names).gather(pl.col("name")),
            category=pl.lit(titles).gather(pl.col("category").cast(pl.UInt32)),
        )
        keys = ("time", "name", "category")
        return with_names.sort(*keys, descending=[True, False, False])


class _Activity(NamedTuple):
    """What the host does in each piece of time."""

    row: Indices  # the event, or NOTHING
    category: Categories
    waits: Bools  # nothing is running, or only a range


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Divide the steps into pieces with what the host did in each."""
    own = own_categories(trace)
    by_row = _with_forward(trace, nesting, steps, own, categories(trace, nesting, own))
    helpers = _threads_of_backward(trace, steps, own)
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    collectives = _collectives_of_host(trace, nesting, steps)
    pieces = Pieces.of(steps, [main, *others], collectives)
    activity = _activity(trace, by_row, main, others, pieces.begin)
    exposed = _exposed(own, activity, pieces.begin, collectives)
    category = activity.category.copy()
    category[exposed] = Category.communication
    _fill(category, pieces, _longest_pause(steps))
    if int((pieces.end - pieces.begin).sum()) != int(steps.wall.sum()):
        raise AssertionError("the host's time does not add up to that of the steps")
    named = names_of_pieces(trace, nesting, steps, pieces, activity.row)
    return HostTime(
        begin=pieces.begin,
        end=pieces.end,
        row=activity.row,
        category=category,
        step=pieces.step,
        name=named.name,
        names=named.names,
        loader=_loader_time(trace, nesting, steps),
        is_call=named.is_call,
        helpers=tuple(helpers),
        events=by_row,
    )


def _threads_of_backward(trace: Trace, steps: Steps, own: Categories) -> list[int]:
    """Return the other threads that run operators of the backward."""
    is_backward = (own == Category.backward) & (trace.kind == Kind.operator)
    is_elsewhere = trace.thread != steps.thread
    threads: list[int] = np.unique(trace.thread[is_backward & is_elsewhere]).tolist()
    return threads


def _collectives_of_host(trace: Trace, nesting: Nesting, steps: Steps) -> Covered:
    """Return when collectives of the host run, which is beside the thread of the steps.

    Ranges of NCCL only launch work on the device.
    """

    def is_of_host(name: str) -> bool:
        is_launch_only = name.startswith(("nccl:", "rccl:"))
        return is_collective(name) is not None and not is_launch_only

    is_beside = trace.named(is_of_host)
    is_beside &= (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    return Covered.union(trace.begin[is_beside], trace.ends(is_beside))


def _loader_time(trace: Trace, nesting: Nesting, steps: Steps) -> Ints:
    """Return the time of each step that its thread spends in the loader."""
    is_loading = trace.named(is_loader) & (nesting.lane == steps.thread)
    is_loading &= trace.kind != Kind.runtime
    covered = Covered.union(trace.begin[is_loading], nesting.cut[is_loading])
    return covered.within(steps.begin, steps.end)


def _longest_pause(steps: Steps) -> float:
    """Return the longest pause between two operators that belongs to the forward."""
    share_of_step = SHARE_PAUSE * float(np.median(steps.wall))
    return min(max(SHORTEST_PAUSE, share_of_step), LONGEST_PAUSE)


def _activity(
    trace: Trace,
    by_row: Categories,
    main: Timeline,
    others: Sequence[Timeline],
    begin: Ints,
) -> _Activity:
    """Return what the main thread does; while it waits, what the other threads do for it."""
    row = main.at(begin)
    category = np.where(row >= 0, by_row[row], np.int8(NOTHING))
    kind = trace.kind[row]
    # Nothing is running, or only a range in which other threads may be working.
    waits = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    waits &= (category == NOTHING) | (category == Category.backward)
    for line in others:
        row_of_other = line.at(begin)
        is_helped = waits & (row_of_other >= 0)
        row = np.where(is_helped, row_of_other, row)
        is_unclassified = by_row[row_of_other] == NOTHING
        of_other = np.where(is_unclassified, np.int8(Category.backward), by_row[row_of_other])
        category = np.where(is_helped, of_other, category)
        waits &= ~is_helped
    return _Activity(row, category, waits)


def _with_forward(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    own: Categories,
    categories_of_rows: Categories,
) -> Categories:
    """Classify unclassified operators as forward if their backward follows in the same step.

    An operator that needs no gradient has the number of the next one that does, so only the last
    operator with a number, and everything inside it, belongs to the forward.
    """
    is_numbered = trace.sequence >= 0
    of_backward = np.flatnonzero(is_numbered & (own == Category.backward))
    is_candidate = is_numbered & (categories_of_rows == NOTHING)
    is_candidate &= (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    rows = np.flatnonzero(is_candidate)
    keys, keys_of_backward = _keys_of_sequences(trace, steps, rows, of_backward)
    has_backward = np.isin(keys, keys_of_backward)
    rows = rows[has_backward]
    last = _last_outermost(rows, keys[has_backward], nesting)
    with_forward = categories_of_rows.copy()
    with_forward[last] = Category.forward
    return nearest(with_forward, nesting)


def _keys_of_sequences(trace: Trace, steps: Steps, first: Ints, second: Ints) -> list[Ints]:
    """Return keys of two lists of events, equal for events of one step and sequence number."""
    both = np.concatenate([first, second])
    step = np.searchsorted(steps.begin, trace.begin[both], side="right")
    # A damaged trace may have a number so large that a multiple of it overflows.
    _, number = np.unique(trace.sequence[both], return_inverse=True)
    return np.split(step * len(both) + number, [len(first)])


def _last_outermost(rows: Ints, keys: Ints, nesting: Nesting) -> Ints:
    """Return the last event of each key that no other event with the key encloses.

    The events are sorted by their beginning.
    """
    outer = nesting.parent[rows]
    is_inside = np.isin(outer, rows)
    outer_keys = keys[np.searchsorted(rows, outer[is_inside])]
    is_inside[is_inside] = outer_keys == keys[is_inside]
    rows = rows[~is_inside]
    keys = keys[~is_inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    return rows[len(rows) - 1 - from_end]


def _exposed(
    own: Categories,
    activity: _Activity,
    begin: Ints,
    collectives: Covered,
) -> Bools:
    """Return where the host waits for a collective, except between operators of the backward."""
    is_open = collectives.within(begin, begin + 1) > 0
    works = np.flatnonzero(~activity.waits)
    following = np.searchsorted(works, np.arange(len(begin)))
    following_row = np.append(activity.row[works], NOTHING)[following]
    continues = (following_row >= 0) & (own[following_row] == Category.backward)
    exposed: Bools = is_open & activity.waits & ~continues
    return exposed


def _fill(category: Categories, pieces: Pieces, pause: float) -> None:
    """Extend forward and backward over unclassified pieces between two pieces of the same category.

    Such a piece is Python code between operators. A long pause in the forward can be anything, so
    it is not filled. All other unclassified pieces become `Category.other`.
    """
    classified = np.flatnonzero(category != NOTHING).astype(np.int32)
    unclassified = np.flatnonzero(category == NOTHING).astype(np.int32)
    after = np.searchsorted(classified, unclassified)
    is_between = (after > 0) & (after < len(classified))
    between = unclassified[is_between]
    left = classified[after[is_between] - 1]
    right = classified[after[is_between]]
    in_one_step = pieces.step[left] == pieces.step[right]
    in_one_step &= pieces.step[right] == pieces.step[between]
    is_backward = category[left] == Category.backward
    is_short = pieces.begin[right] - pieces.end[left] <= pause
    is_extended = is_backward | ((category[left] == Category.forward) & is_short)
    is_filled = (category[left] == category[right]) & in_one_step & is_extended
    filled_with = category[left[is_filled]]
    category[unclassified] = Category.other
    category[between[is_filled]] = filled_with
