"""Find where each training step of a trace begins and ends, and which steps count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deltacell.base.arrays import Bools, Indices, Ints, distinct
from deltacell.profile.trace.intervals import Covered
from deltacell.profile.trace.self_time import Timeline
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

WARM_UP = 1.4  # a leading step of this many times the median after the first step is warm-up


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a trace, in nanoseconds."""

    begin: Ints
    end: Ints
    number: Ints  # as the program numbers them, or from 0
    counted: Bools  # neither warm-up nor cut off; at least one step counts
    how: str  # how they were found
    thread: int  # the thread that runs the steps
    cut: tuple[tuple[int, str], ...]  # numbers of steps that do not count, and why

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def wall(self) -> Ints:
        """The nanoseconds of each step."""
        return self.end - self.begin

    def place(self, times: Ints) -> Ints:
        """Return the index of the step that contains each time; -1 outside all steps."""
        step = np.searchsorted(self.begin, times, side="right") - 1
        return np.where((step >= 0) & (times < self.end[step]), step, -1)

    def in_counted(self, times: Ints) -> Bools:
        """Return which times lie in a step that counts."""
        step = self.place(times)
        return np.asarray((step >= 0) & self.counted[step], dtype=bool)


def find_steps(trace: Trace, launch: Indices | None = None) -> Steps:
    """Find the steps of a trace.

    Steps are the ``ProfilerStep`` ranges; without these, consecutive ranges named as steps; without
    these, they end with the last optimizer of each round; otherwise the whole trace is one step.
    With a device, that one lasts from the launch of the device's first event to the end of its last
    one: what comes before and after is not part of anything that repeats. ``launch`` is the row of
    the call that launched each event of the device.

    The first step is cut because the profiler starts in it. Also cut are leading steps of at least
    `WARM_UP` times the median after the first step, up to half of the steps, and a last step with
    less than half the time and half the events of the others. A single step is never cut.
    """
    marked = _profiler_steps(trace) or _named_steps(trace) or _optimizer_steps(trace)
    begin, end, number, how, thread = marked or _whole(trace, launch)
    times = trace.begin[trace.thread == thread]
    events = np.searchsorted(times, end) - np.searchsorted(times, begin)
    counted = np.ones(len(begin), dtype=bool)
    cut: list[tuple[int, str]] = []
    # Each profiler cycle has its own start and end.
    cycle = np.searchsorted(trace.cycles, begin, side="right")
    for cycle_number in np.unique(cycle).tolist():
        of_cycle = np.flatnonzero(cycle == cycle_number)
        for place, why in _uncounted((end - begin)[of_cycle], events[of_cycle]):
            counted[of_cycle[place]] = False
            cut.append((int(number[of_cycle[place]]), why))
    return Steps(begin, end, number, counted, how, thread, tuple(cut))


_Found = tuple[Ints, Ints, Ints, str, int]
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
_STEP = re.compile(
    r"^\W*(?:train(?:ing)?[\s_.]*)?(?:step|iteration|iter|batch)\b\W*(\d*)\W*$|run_training_batch",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(
    r"^Optimizer\.step#|^phase\.optimizer$|^\W*optimizer\W*$|optimizer_step|^opt(?:im)?[._ ]step$",
)
_OPTIMIZER_FUNCTION = re.compile(r"torch/optim/\w+\.py\(\d+\): step$")


def _rows(trace: Trace, pattern: re.Pattern[str], *kinds: Kind) -> tuple[Ints, int]:
    # Names are untrusted, and those of steps are short.
    named = trace.named(lambda name: len(name) <= 1000 and pattern.search(name))
    rows = np.flatnonzero(named & np.isin(trace.kind, kinds))
    thread = int(np.bincount(trace.thread[rows]).argmax()) if len(rows) else 0
    return rows[trace.thread[rows] == thread], thread


def _outermost(trace: Trace, rows: Ints) -> Ints:
    reached = np.maximum.accumulate(trace.ends(rows))
    first = np.ones(len(rows), dtype=bool)
    first[1:] = trace.begin[rows][1:] >= reached[:-1]
    return rows[first]


def _profiler_steps(trace: Trace) -> _Found | None:
    rows, thread = _rows(trace, _PROFILER_STEP, Kind.annotation, Kind.operator)
    rows = rows[trace.duration[rows] > 0]
    if not len(rows):
        return None
    begin = trace.begin[rows]
    end = trace.ends(rows)
    # Time after the beginning of the next step would count twice.
    end[:-1] = np.minimum(end[:-1], begin[1:])
    # Names are untrusted, and a column holds 18 digits.
    numbers = [int(trace.text(row).rpartition("#")[2][-18:]) for row in rows.tolist()]
    lasting = end > begin
    return begin[lasting], end[lasting], np.array(numbers)[lasting], "ProfilerStep", thread


def _named_steps(trace: Trace) -> _Found | None:
    rows, thread = _rows(trace, _STEP, Kind.annotation)
    rows = _outermost(trace, rows)
    rows = rows[trace.duration[rows] > 0]
    if len(rows) < 2:
        return None
    # From one beginning to the next, because the wait for a batch may lie in between.
    begin = trace.begin[rows]
    end = np.append(begin[1:], trace.ends(rows[-1]))
    name = re.sub(r"\d+", "*", trace.text(int(rows[0])))
    return begin, end, np.arange(len(rows)), f"ranges named '{name}'", thread


def _optimizer_steps(trace: Trace) -> _Found | None:
    rows, thread = _rows(trace, _OPTIMIZER, Kind.annotation, Kind.operator)
    if not len(rows):
        rows, thread = _rows(trace, _OPTIMIZER_FUNCTION, Kind.python)
    if not len(rows):
        return None
    rows = _outermost(trace, rows)
    # Several optimizers take turns; a round ends with the last optimizer of the trace.
    last = rows[trace.name[rows] == trace.name[rows[-1]]]
    end = trace.ends(last)
    begin = np.append(trace.begin[trace.thread == thread].min(), end[:-1])
    lasting = end > begin
    if not lasting.any():
        return None
    how = f"calls of '{trace.text(int(last[-1]))}'"
    return begin[lasting], end[lasting], np.arange(int(lasting.sum())), how, thread


def _whole(trace: Trace, launch: Indices | None) -> _Found:
    known = trace.kind != Kind.other
    rows = np.flatnonzero(known if known.any() else ~known)
    host = np.array([not thread.is_device for thread in trace.threads], dtype=bool)
    weights = np.maximum(trace.duration[rows], 0) * host[trace.thread[rows]]
    busy = np.bincount(trace.thread[rows], weights=weights)
    span = _device_span(trace, launch)
    first, last = span or (int(trace.begin[rows].min()), int(trace.ends(rows).max()))
    begin = np.array([first])
    end = np.array([max(last, first + 1)])
    how = "the whole trace, because nothing in it repeats"
    return begin, end, np.zeros(1, dtype=np.int64), how, int(busy.argmax())


def _device_span(trace: Trace, launch: Indices | None) -> tuple[int, int] | None:
    """Return when the device's first event was launched and its last one ended, if it has any."""
    work = np.flatnonzero(trace.on_device & (trace.duration > 0))
    if not len(work):
        return None
    first = int(work[trace.begin[work].argmin()])
    begin = int(trace.begin[first])
    call = NOTHING if launch is None else int(launch[first])
    launched = begin if call == NOTHING else int(trace.begin[call])
    return min(begin, launched), int(trace.ends(work).max())


def _uncounted(wall: Ints, events: Ints) -> list[tuple[int, str]]:
    cut = []
    whole = len(wall)
    if whole > 1 and all(2 * x[-1] < np.median(x[:-1]) for x in (wall, events)):
        whole -= 1
    rest = float(np.median(wall[1:whole])) if whole > 1 else 0.0
    for place in range(whole // 2):
        times = wall[place] / rest if rest else float("inf")
        if times >= WARM_UP:
            cut.append((place, f"warm-up, {times:.1f} times the median after the first step"))
        elif place == 0:
            cut.append((place, "the profiler starts in it"))
        else:
            break
    if whole < len(wall):
        cut.append((whole, "the profiler stopped in it"))
    return cut


class Pieces(NamedTuple):
    """Consecutive pieces of time that fill all steps."""

    begin: Ints
    end: Ints
    step: Indices  # the index of the step

    @classmethod
    def of(cls, steps: Steps, lines: Sequence[Timeline], collectives: Covered) -> Pieces:
        """Return the pieces between any two times at which something begins or ends."""
        bounds = (steps.begin, steps.end, collectives.begin, collectives.end)
        times, _ = distinct(np.concatenate([*bounds, *(line.times for line in lines)]))
        # The bounds of steps are among the times, so a piece lies in one step or in none.
        step = steps.place(times[:-1]).astype(np.int32)
        is_inside = step >= 0
        return cls(times[:-1][is_inside], times[1:][is_inside], step[is_inside])
