"""The host's time: of every moment of a step, what the program was busy with.

It is that of the thread the steps are on. Where that thread only waits for the threads that run
the backward, it is theirs; where it waits for a collective of the host, it is the collective's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.categories import (
    Category,
    categories,
    is_collective,
    is_loader,
    nearest,
    own_categories,
)
from deltacell.profile.trace.self_time import (
    Covered,
    Nesting,
    Timeline,
    merge,
    moments,
    parts,
    timeline,
)
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


@dataclass(frozen=True, eq=False)
class HostTime:
    """Pieces of time, one after another, that fill all steps.

    Parameters
    ----------
    begin, end
        Of each piece in nanoseconds, int64 [k].
    row
        The event that the piece belongs to, int32 [k]; `NOTHING` where none was recorded.
    category
        Of each piece, int8 [k].
    step
        The place of the step that each lies in, int32 [k].
    inferred
        Whether the category is not from a name but from what lies around, bool [k].
    loader
        Nanoseconds of each step that the training was in its loader, int64 [s].
    helpers
        The threads that ran the backward for it.
    residual
        Nanoseconds by which the pieces and the steps differ.
    """

    begin: Ints
    end: Ints
    row: Codes
    category: npt.NDArray[np.int8]
    step: Codes
    inferred: npt.NDArray[np.bool_]
    loader: Ints
    helpers: tuple[int, ...]
    residual: int

    @property
    def length(self) -> Ints:
        """Nanoseconds of each piece, int64 [k]."""
        return self.end - self.begin

    def by_category(self, steps: int) -> Ints:
        """Return the nanoseconds of each step and category, int64 [s, 12]."""
        total = np.zeros(steps * len(Category), dtype=np.int64)
        for part in parts(len(self.begin)):
            place = self.step[part].astype(np.int64) * len(Category) + self.category[part]
            length = self.end[part] - self.begin[part]
            total += np.bincount(place, weights=length, minlength=len(total)).astype(np.int64)
        return total.reshape(steps, len(Category))

    def covered(self, which: npt.NDArray[np.bool_]) -> Covered:
        """Return when the host was in these of its pieces."""
        first, last = which.copy(), which.copy()
        goes_on = which[1:] & which[:-1]
        goes_on &= self.begin[1:] == self.end[:-1]
        first[1:] ^= goes_on
        last[:-1] ^= goes_on
        return Covered(self.begin[first], self.end[last])

    def between(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the places of the pieces of a stretch of time, and what of each lies in it."""
        first = int(np.searchsorted(self.end, begin, side="right"))
        last = int(np.searchsorted(self.begin, end, side="left"))
        places = np.arange(first, max(first, last))
        inside = np.minimum(self.end[places], end) - np.maximum(self.begin[places], begin)
        return places, inside


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Tell what the host was busy with at every moment of every step."""
    told = own_categories(trace)
    found = _with_forward(trace, nesting, steps, told, categories(trace, nesting, told))
    helpers = _helpers(trace, steps, told)
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    collectives = _collectives(trace, nesting, steps)
    times = moments(
        main.times,
        steps.begin,
        steps.end,
        *(line.times for line in others),
        *collectives,
    )
    begin, end, step = _within(steps, times)
    del times
    row = np.empty(len(begin), dtype=np.int32)
    category = np.empty(len(begin), dtype=np.int8)
    waits = np.empty(len(begin), dtype=bool)
    for part in parts(len(begin)):
        row[part], category[part], waits[part] = _busy(trace, found, main, others, begin[part])
    del main, others
    exposed = _exposed(told, row, waits, begin, collectives)
    category[exposed] = Category.communication
    least, most, share = PAUSE
    pause = min(max(least, share * float(np.median(steps.wall))), most)
    category, inferred = _fill(category, step, begin, end, pause)
    inferred |= exposed
    filled = sum(int((end[part] - begin[part]).sum()) for part in parts(len(begin)))
    residual = abs(filled - int(steps.wall.sum()))
    if residual:
        raise AssertionError(f"the host's time misses that of the steps by {residual} ns")
    loader = _loader(trace, nesting, steps)
    return HostTime(begin, end, row, category, step, inferred, loader, helpers, residual)


def _within(steps: Steps, times: Ints) -> tuple[Ints, Ints, Codes]:
    """Return the pieces between these times that lie in a step, and the step of each."""
    # The bounds of steps are among the times.
    first, last = np.searchsorted(times, steps.begin), np.searchsorted(times, steps.end)
    places = [slice(a, max(a, b)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    begin = np.concatenate([times[:-1][place] for place in places])
    end = np.concatenate([times[1:][place] for place in places])
    step = np.repeat(np.arange(len(steps), dtype=np.int32), np.maximum(last - first, 0))
    return begin, end, step


def _busy(
    trace: Trace,
    found: npt.NDArray[np.int8],
    main: Timeline,
    others: Sequence[Timeline],
    begin: Ints,
) -> tuple[Codes, npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return of pieces the event and category of each, and whether the program waits in it."""
    row = main.at(begin)
    category = np.where(row >= 0, found[row], np.int8(NOTHING))
    waits = _waits(trace, row) & ((category == NOTHING) | (category == Category.backward))
    for line in others:
        other = line.at(begin)
        helped = waits & (other >= 0)
        row = np.where(helped, other, row)
        theirs = np.where(found[other] == NOTHING, np.int8(Category.backward), found[other])
        category = np.where(helped, theirs, category)
        waits &= ~helped
    return row, category, waits


def _waits(trace: Trace, row: Codes) -> npt.NDArray[np.bool_]:
    """Return where nothing is at work, or only a range that others may be at work in."""
    kind = trace.kind[row]
    waits: npt.NDArray[np.bool_] = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    return waits


def _helpers(trace: Trace, steps: Steps, told: npt.NDArray[np.int8]) -> tuple[int, ...]:
    """Return the other threads that ran a backward."""
    at_work = (told == Category.backward) & (trace.kind == Kind.operator)
    threads = np.unique(trace.thread[at_work & (trace.thread != steps.thread)])
    return tuple(int(thread) for thread in threads)


def _with_forward(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    told: npt.NDArray[np.int8],
    found: npt.NDArray[np.int8],
) -> npt.NDArray[np.int8]:
    """Call forward what no name tells and what has a backward later in the same step.

    An operator that needs no gradient has the number of the next one that does, so that of those
    with one number the last is meant, with all that lies in it.
    """
    numbered = trace.sequence >= 0
    back = np.flatnonzero(numbered & (told == Category.backward))
    untold = numbered & (found == NOTHING)
    untold &= (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    rows = np.flatnonzero(untold)
    if not len(back) or not len(rows):
        return found
    most = int(trace.sequence.max()) + 1

    def key(these: Ints) -> Ints:
        step: Ints = np.searchsorted(steps.begin, trace.begin[these], side="right")
        return step * most + trace.sequence[these]

    keys = key(rows)
    meant = np.isin(keys, key(back))
    rows, keys = rows[meant], keys[meant]
    # Rows are by beginning: of those with one key the last that lies in none of the others.
    outer = nesting.parent[rows]
    inside = np.isin(outer, rows)
    inside[inside] = _same_key(rows, keys, outer[inside], keys[inside])
    rows, keys = rows[~inside], keys[~inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    own = found.copy()
    own[rows[len(rows) - 1 - from_end]] = Category.forward
    return nearest(own, nesting.parent)


def _same_key(rows: Ints, keys: Ints, others: Codes, expected: Ints) -> npt.NDArray[np.bool_]:
    """Return whether these of the rows have the keys that are expected."""
    found: npt.NDArray[np.bool_] = keys[np.searchsorted(rows, others)] == expected
    return found


def _collectives(trace: Trace, nesting: Nesting, steps: Steps) -> tuple[Ints, Ints]:
    """Return when a collective of the host runs beside the thread of the steps."""
    named = np.array([is_collective(name) for name in trace.names], dtype=bool)
    if not named.any():
        return merge(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    rows = named[trace.name] & (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    # Those of NCCL are only the launch; what they launch is on the device.
    launched = np.array([name.startswith(("nccl:", "rccl:")) for name in trace.names], dtype=bool)
    rows &= ~launched[trace.name]
    return merge(trace.begin[rows], trace.ends(rows))


def _exposed(
    told: npt.NDArray[np.int8],
    row: Codes,
    waits: npt.NDArray[np.bool_],
    begin: Ints,
    collectives: tuple[Ints, Ints],
) -> npt.NDArray[np.bool_]:
    """Return where the host waits for a collective, and not only between two of its operators."""
    starts, stops = collectives
    if not len(starts):
        return np.zeros(len(begin), dtype=bool)
    place = np.searchsorted(starts, begin, side="right") - 1
    is_open = (place >= 0) & (begin < stops[place])
    # The backward goes on where the next thing at work is one of its operators.
    works = np.flatnonzero(~waits)
    following = np.searchsorted(works, np.arange(len(row)))
    last = following >= len(works)
    after = row[works[np.minimum(following, len(works) - 1)]] if len(works) else row
    goes_on = ~last & (after >= 0) & (told[after] == Category.backward)
    exposed: npt.NDArray[np.bool_] = is_open & waits & ~goes_on
    return exposed


PAUSE = (100_000, 500_000, 0.02)
"""What may lie between two operators of the forward and be a part of it: nanoseconds at least and
at most, and the share of a step."""


def _fill(
    category: npt.NDArray[np.int8], step: Codes, begin: Ints, end: Ints, pause: float
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Give what no name tells to what lies before and after it, where both are the same.

    Only of forward and backward: their operators have Python between them that no range holds.
    A long pause in the forward may be anything, so that it is not filled.
    """
    told = np.flatnonzero(category != NOTHING).astype(np.int32)
    untold = np.flatnonzero(category == NOTHING).astype(np.int32)
    filled = category.copy()
    inferred = np.zeros(len(category), dtype=bool)
    filled[untold] = Category.other
    if len(told) and len(untold):
        after = np.searchsorted(told, untold)
        inner = (after > 0) & (after < len(told))
        untold, after = untold[inner], after[inner]
        left, right = told[after - 1], told[after]
        same = (
            (category[left] == category[right])
            & (step[left] == step[untold])
            & (step[right] == step[untold])
            & np.isin(category[left], (Category.forward, Category.backward))
            & ((category[left] == Category.backward) | (begin[right] - end[left] <= pause))
        )
        filled[untold[same]] = category[left[same]]
        inferred[untold[same]] = True
    return filled, inferred


def _loader(trace: Trace, nesting: Nesting, steps: Steps) -> Ints:
    """Return how long the training was in its loader, of each step."""
    named = np.array([is_loader(name) for name in trace.names], dtype=bool)
    rows = named[trace.name] & (nesting.lane == steps.thread) & (trace.kind != Kind.runtime)
    return Covered.of(trace.begin[rows], nesting.cut[rows]).within(steps.begin, steps.end)
