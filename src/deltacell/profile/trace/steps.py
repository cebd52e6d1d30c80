"""Steps: where each training step of a trace begins and ends, and which of them count."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.trace import Ints, Kind, Trace

WARM_UP = 1.4
"""A leading step that takes this many times the median of those after the first is warm-up."""


@dataclass(frozen=True)
class CutStep:
    """A step that does not count, and why."""

    number: int
    why: str


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a trace, by time.

    Parameters
    ----------
    begin, end
        In nanoseconds, int64 [s].
    number
        What the program calls each, int64 [s]; counted from 0 where it does not say.
    counted
        Whether a step is neither warm-up nor the profiler's first, bool [s]; at least one is.
    how
        How they were found, in words.
    thread
        The thread of the steps, which everything waits for.
    cut
        The steps that do not count.
    """

    begin: Ints
    end: Ints
    number: Ints
    counted: npt.NDArray[np.bool_]
    how: str
    thread: int
    cut: tuple[CutStep, ...]

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def wall(self) -> Ints:
        """Nanoseconds of each step, int64 [s]."""
        return self.end - self.begin

    def place(self, times: Ints) -> Ints:
        """Return the place of the step that each time lies in; -1 outside of all."""
        step = np.searchsorted(self.begin, times, side="right") - 1
        return np.where((step >= 0) & (times < self.end[step]), step, -1)

    def in_counted(self, times: Ints) -> npt.NDArray[np.bool_]:
        """Return which of these times are in a step that counts."""
        step = self.place(times)
        return np.asarray((step >= 0) & self.counted[step], dtype=bool)


def find_steps(trace: Trace) -> Steps:
    """Find the steps of a trace.

    They are its ``ProfilerStep`` ranges; else the ranges that are named as a step and follow one
    another; else they end where the calls of the optimizer that come last in each round end; else
    the whole trace is one step. Between two ``ProfilerStep`` is only the profiler's own work,
    which belongs to no step.

    The profiler starts in the first step, so that one is cut. So are leading ones of at least
    `WARM_UP` times the median of those after the first, at most half of the steps; and a last one
    with less than half the time and half the events of the others, because the profiler stopped
    in it. The only step is never cut.
    """
    for find in (_profiler_steps, _named_steps, _optimizer_steps):
        found = find(trace)
        if found is not None:
            break
    else:
        found = _whole(trace)
    begin, end, number, how, thread = found
    events = _events(trace, thread, begin, end)
    counted = np.ones(len(begin), dtype=bool)
    cut: list[CutStep] = []
    # Each profiler cycle has its own start and end.
    cycle = np.searchsorted(trace.cycles, begin, side="right")
    for one in np.unique(cycle).tolist():
        mine = np.flatnonzero(cycle == one)
        counted[mine], why = _count((end - begin)[mine], number[mine], events[mine])
        cut += why
    return Steps(begin, end, number, counted, how, thread, tuple(cut))


_Found = tuple[Ints, Ints, Ints, str, int]
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
_STEP = re.compile(
    r"^\W*(?:train(?:ing)?[\s_.]*)?(?:step|iteration|iter|batch)\b\W*(\d*)\W*$|run_training_batch",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(
    r"^Optimizer\.step#|^phase\.optimizer$|^\W*optimizer\W*$|optimizer_step|^opt(?:im)?[._ ]step$"
)
_OPTIMIZER_FUNCTION = re.compile(r"torch/optim/\w+\.py\(\d+\): step$")
_RANGES = (int(Kind.annotation), int(Kind.operator))


def _rows(trace: Trace, pattern: re.Pattern[str], kinds: tuple[int, ...] = _RANGES) -> Ints:
    # Names are untrusted; the ones that are looked for are short.
    named = trace.named(lambda name: len(name) <= 1000 and pattern.search(name))
    return np.flatnonzero(named & np.isin(trace.kind, kinds))


def _on_one_thread(trace: Trace, rows: Ints) -> tuple[Ints, int]:
    thread = int(np.bincount(trace.thread[rows]).argmax())
    return rows[trace.thread[rows] == thread], thread


def _outermost(trace: Trace, rows: Ints) -> Ints:
    reached = np.maximum.accumulate(trace.ends(rows))
    first = np.ones(len(rows), dtype=bool)
    first[1:] = trace.begin[rows][1:] >= reached[:-1]
    return rows[first]


def _profiler_steps(trace: Trace) -> _Found | None:
    rows = _rows(trace, _PROFILER_STEP)
    if not len(rows):
        return None
    rows, thread = _on_one_thread(trace, rows)
    rows = rows[trace.duration[rows] > 0]
    if not len(rows):
        return None
    begin, end = trace.begin[rows], trace.ends(rows)
    # One that outlasts the beginning of the next would be counted twice.
    end[:-1] = np.minimum(end[:-1], begin[1:])
    numbers = np.array([_number(_PROFILER_STEP, trace.text(row)) for row in rows.tolist()])
    lasting = end > begin
    return begin[lasting], end[lasting], numbers[lasting], "ProfilerStep", thread


def _named_steps(trace: Trace) -> _Found | None:
    rows = _rows(trace, _STEP, (int(Kind.annotation),))
    if not len(rows):
        return None
    rows, thread = _on_one_thread(trace, rows)
    rows = _outermost(trace, rows)
    rows = rows[trace.duration[rows] > 0]
    if len(rows) < 2:
        return None
    # From one beginning to the next, because the wait for a batch may lie between.
    begin = trace.begin[rows]
    end = np.append(begin[1:], trace.ends(rows[-1]))
    name = re.sub(r"\d+", "*", trace.text(int(rows[0])))
    return begin, end, np.arange(len(rows)), f"ranges named '{name}'", thread


def _optimizer_steps(trace: Trace) -> _Found | None:
    rows = _rows(trace, _OPTIMIZER)
    if not len(rows):
        rows = _rows(trace, _OPTIMIZER_FUNCTION, (int(Kind.python),))
    if not len(rows):
        return None
    rows, thread = _on_one_thread(trace, rows)
    rows = _outermost(trace, rows)
    # Several optimizers take turns; a round ends with the one that the trace ends with.
    last = rows[trace.name[rows] == trace.name[rows[-1]]]
    end = trace.ends(last)
    first = trace.begin[trace.thread == thread].min()
    begin = np.append(first, end[:-1])
    lasting = end > begin
    if not lasting.any():
        return None
    how = f"calls of '{trace.text(int(last[-1]))}'"
    return begin[lasting], end[lasting], np.arange(int(lasting.sum())), how, thread


def _whole(trace: Trace) -> _Found:
    rows = np.flatnonzero(trace.kind != Kind.other)
    rows = rows if len(rows) else np.arange(len(trace))
    host = np.array([not thread.is_device for thread in trace.threads], dtype=bool)
    weights = np.maximum(trace.duration[rows], 0) * host[trace.thread[rows]]
    busy = np.bincount(trace.thread[rows], weights=weights)
    begin = np.array([trace.begin[rows].min()])
    end = np.array([max(trace.ends(rows).max(), begin[0] + 1)])
    how = "the whole trace, because nothing in it repeats"
    return begin, end, np.zeros(1, dtype=np.int64), how, int(busy.argmax())


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    # Names are untrusted: a number that no column holds is none.
    return int(found[1][-18:]) if found else 0


def _events(trace: Trace, thread: int, begin: Ints, end: Ints) -> Ints:
    times = trace.begin[trace.thread == thread]
    return np.searchsorted(times, end) - np.searchsorted(times, begin)


def _count(
    wall: Ints, number: Ints, events: Ints
) -> tuple[npt.NDArray[np.bool_], tuple[CutStep, ...]]:
    counted = np.ones(len(wall), dtype=bool)
    cut: list[CutStep] = []
    whole = len(wall)
    if whole > 1 and all(2 * x[-1] < np.median(x[:-1]) for x in (wall, events)):
        whole -= 1
        counted[-1] = False
    rest = float(np.median(wall[1:whole])) if whole > 1 else 0.0
    for place in range(whole // 2):
        times = wall[place] / rest if rest else float("inf")
        if times >= WARM_UP:
            why = f"warm-up: {times:.1f} times the median of the steps after the first"
        elif place == 0:
            why = "the profiler starts in it"
        else:
            break
        counted[place] = False
        cut.append(CutStep(int(number[place]), why))
    if whole < len(wall):
        cut.append(CutStep(int(number[-1]), "it is incomplete: the profiler stopped in it"))
    return counted, tuple(cut)
