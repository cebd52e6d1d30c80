"""Times per step and per epoch from progress bars: steps done over time elapsed.

A displayed rate is an average since the bar began, or a moving one, so it lags behind. The time
between two states of a bar does not, but it is in whole seconds: intervals are therefore
`LEAST_S` seconds or more.

Left out are sanity checks, validation, tests and prediction; intervals of a training bar within
which another bar ran; other bars, such as downloads; and bars that count samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deltacell.profile.logs.bars import BarLine, Role
from deltacell.profile.logs.readings import (
    CutReason,
    Cuts,
    LogReading,
    LogSource,
    Quantity,
    is_time,
)

LEAST_S = 10  # seconds of an interval; the error of its time is below one second
MOST_INTERVALS = 20  # of a bar
MOST_BARS = 100_000
_MOST_OPEN = 100
_MOST_POINTS = 4_000  # of a bar; then every second one is dropped

_CUTS = {
    Role.sanity_check: CutReason.sanity_check,
    Role.evaluation: CutReason.evaluation,
    Role.unknown: CutReason.other_bar,
    Role.training: CutReason.other_bar,
}


@dataclass(frozen=True)
class _Point:
    line: int
    done: int
    elapsed_s: int
    is_after_other: bool  # whether another bar ran since the point before


@dataclass
class _OpenBar:
    """One bar from its beginning to its last state."""

    first: BarLine
    last: BarLine
    points: list[_Point] = field(default_factory=list)
    gap_s: int = 1  # the least time between two points
    rate: float | None = None  # as displayed at last before another bar ran
    was_interrupted: bool = False

    def add(self, state: BarLine, *, is_after_other: bool) -> None:
        """Keep a state; of those within one second only the first, where the second changes."""
        self.last = state
        self.was_interrupted |= is_after_other and self.rate is not None
        if not self.was_interrupted and state.rate is not None:
            self.rate = state.rate
        point = _Point(state.line, state.done, state.elapsed_s, is_after_other)
        if self.points and not is_after_other:
            before = self.points[-1]
            is_finished = state.done == state.total and before.done < state.done
            if state.elapsed_s - before.elapsed_s < self.gap_s and not is_finished:
                return
        self.points.append(point)
        if len(self.points) > _MOST_POINTS:
            self.gap_s *= 2
            kept = [p for i, p in enumerate(self.points) if i % 2 == 0 or p.is_after_other]
            self.points = kept[-_MOST_POINTS:]

    def is_continued_by(self, state: BarLine) -> bool:
        """Return whether a state is one of this bar, and not of the next with its name."""
        is_earlier = state.elapsed_s < self.last.elapsed_s - 1
        is_restarted = state.done <= self.last.done // 2 and self.last.done > 1
        is_same = state.total == self.last.total and state.epoch == self.last.epoch
        return is_same and not is_earlier and not is_restarted

    def is_out_of_order(self, state: BarLine) -> bool:
        """Return whether another process, which draws the same bar, was here before."""
        return state.done < self.last.done or state.elapsed_s < self.last.elapsed_s


@dataclass(frozen=True)
class _Bar:
    """A bar that is over."""

    name: str
    role: Role
    counts_steps: bool
    first_line: int
    last_line: int
    elapsed_s: int
    n_steps: int
    total: int | None
    epoch: int | None
    is_complete: bool
    step_s: tuple[float, ...]  # of its intervals
    n_steps_timed: int
    n_across_other: int  # intervals that were left out
    n_steps_across_other: int  # the largest number of steps in one of them
    displayed_s: float | None  # per step, as it displays at last before another bar runs


class BarReader:
    """Collects the states of bars and makes readings of them; memory is bounded."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenBar] = {}
        self._bars: list[_Bar] = []
        self._last_key: str | None = None

    def add(self, state: BarLine) -> None:
        """Take the next state of a bar in the log."""
        key = f"{state.role.value} {state.name}"
        is_after_other = self._last_key not in (None, key)
        self._last_key = key
        bar = self._open.get(key)
        if bar is not None and not bar.is_continued_by(state):
            self._close(key)
            bar = None
        if bar is None:
            bar = self._open[key] = _OpenBar(state, state)
            if len(self._open) > _MOST_OPEN:
                self._close(next(iter(self._open)))
        if not bar.is_out_of_order(state):
            bar.add(state, is_after_other=is_after_other)

    def readings(self) -> tuple[LogReading, ...]:
        """Return the readings of the training bars; empty if there are none."""
        for key in list(self._open):
            self._close(key)
        training = self._training_bars()
        if not training:
            return ()
        cuts = self._cuts(training)
        steps = _step_reading(training, cuts)
        epochs = _epoch_reading(training)
        return tuple(reading for reading in (steps, epochs) if reading is not None)

    def steps_per_epoch(self) -> int | None:
        """Return the length of the bars that are of an epoch each, if all have the same.

        Older bars of Lightning also count the steps of validation; their length is not returned.
        """
        bars = [bar for bar in self._training_bars() if bar.epoch is not None]
        totals = {bar.total for bar in bars}
        evaluations = [bar.n_steps for bar in self._bars if bar.role == Role.evaluation]
        n_evaluated = max((bar.n_steps_across_other for bar in bars), default=0)
        counts_evaluation = bool(evaluations) and n_evaluated >= max(evaluations) > 0
        return totals.pop() if len(totals) == 1 and not counts_evaluation else None

    def _close(self, key: str) -> None:
        bar = self._open.pop(key)
        if len(self._bars) < MOST_BARS:
            self._bars.append(_finished(bar))

    def _training_bars(self) -> list[_Bar]:
        """Return the bars that name an epoch or a training, or else the ones that ran longest."""
        counting = [bar for bar in self._bars if bar.counts_steps]
        training = [bar for bar in counting if bar.role == Role.training]
        candidates = training or [bar for bar in counting if bar.role == Role.unknown]
        times: Counter[str] = Counter()
        for bar in candidates:
            # The bar over all epochs has as many steps as there are epochs.
            times[bar.name] += bar.n_steps
        longest = max(times, key=lambda name: times[name], default=None)
        return [bar for bar in candidates if bar.name == longest]

    def _cuts(self, training: list[_Bar]) -> Cuts:
        cuts = Cuts()
        kept = {id(bar) for bar in training}
        for bar in self._bars:
            if id(bar) not in kept:
                reason = _CUTS[bar.role] if bar.counts_steps else CutReason.other_unit
                cuts.add(reason, bar.first_line, bar.last_line)
            for _ in range(bar.n_across_other if id(bar) in kept else 0):
                cuts.add(CutReason.across_evaluation, bar.first_line, bar.last_line)
        return cuts


def _finished(bar: _OpenBar) -> _Bar:
    span_s = bar.last.elapsed_s - bar.first.elapsed_s
    least_s = max(LEAST_S, span_s / MOST_INTERVALS)
    step_s = []
    n_timed = 0
    n_across = 0
    n_steps_across = 0
    start = bar.points[0]
    for before, point in zip(bar.points, bar.points[1:], strict=False):
        if point.is_after_other:
            # What came before counts if it is long enough; the time of the other bar does not.
            seconds = _seconds_per_step(start, before, least_s)
            if seconds is not None:
                step_s.append(seconds)
                n_timed += before.done - start.done
            n_across += 1
            n_steps_across = max(n_steps_across, point.done - before.done)
            start = point
            continue
        seconds = _seconds_per_step(start, point, least_s)
        if seconds is not None:
            step_s.append(seconds)
            n_timed += point.done - start.done
            start = point
    displayed_s = 1 / bar.rate if bar.rate and is_time(1 / bar.rate) else None
    return _Bar(
        bar.first.name,
        bar.first.role,
        bar.first.counts_steps,
        bar.first.line,
        bar.last.line,
        bar.last.elapsed_s,
        bar.last.done,
        bar.last.total,
        bar.last.epoch,
        bar.last.done == bar.last.total,
        tuple(step_s),
        n_timed,
        n_across,
        n_steps_across,
        displayed_s,
    )


def _seconds_per_step(start: _Point, end: _Point, least_s: float) -> float | None:
    """Return the time per step of an interval; None if it is too short or has no step."""
    elapsed_s = end.elapsed_s - start.elapsed_s
    n_steps = end.done - start.done
    if elapsed_s < least_s or n_steps <= 0:
        return None
    return elapsed_s / n_steps


def _step_reading(bars: list[_Bar], cuts: Cuts) -> LogReading | None:
    step_s: list[float] = []
    for bar in bars:
        step_s += bar.step_s
    source = LogSource.bar_counts
    left_out = cuts.all()
    n_steps = sum(bar.n_steps_timed for bar in bars)
    if not step_s:
        source = LogSource.bar_display
        step_s = [bar.displayed_s for bar in bars if bar.displayed_s is not None]
        n_steps = sum(bar.n_steps for bar in bars)
        left_out = tuple(cut for cut in left_out if cut.reason != CutReason.across_evaluation)
    if not step_s:
        return None
    return LogReading(
        Quantity.step,
        source,
        tuple(step_s),
        bars[0].first_line,
        bars[-1].last_line,
        n_steps,
        left_out,
    )


def _epoch_reading(bars: list[_Bar]) -> LogReading | None:
    """Return the time of complete epochs, without the first one if there are others."""
    complete = [
        bar
        for bar in bars
        if bar.epoch is not None and bar.is_complete and bar.elapsed_s >= LEAST_S
    ]
    cuts = Cuts()
    if len(complete) > 1:
        cuts.add(CutReason.first_epoch, complete[0].first_line, complete[0].last_line)
        complete = complete[1:]
    if not complete:
        return None
    return LogReading(
        Quantity.epoch,
        LogSource.bar_counts,
        tuple(float(bar.elapsed_s) for bar in complete),
        complete[0].first_line,
        complete[-1].last_line,
        sum(bar.n_steps for bar in complete),
        cuts.all(),
    )
