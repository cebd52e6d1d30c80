"""The text of Lightning's simple and advanced profilers.

Their means include the first calls, so a reading from them is one number without a warm-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deltacell.profile.logs.readings import LogReading, LogSource, Quantity, is_time

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?"
_HEADER = re.compile(r"Action\s*\|\s*Mean duration \(s\)\s*\|(?P<counts>\s*Num calls\s*\|)?")
_ADVANCED = re.compile(r"Profile stats for: (?P<action>.{1,300}?)(?: rank: \d+)?$")
_CALLS_IN = re.compile(rf"function calls.{{0,100}} in (?P<seconds>{_NUMBER}) seconds")
# ncalls tottime percall cumtime percall filename:lineno(function)
_FUNCTION = re.compile(
    rf"^\s*(?:\d+/)?(?P<calls>\d{{1,15}})\s+{_NUMBER}\s+{_NUMBER}\s+(?P<seconds>{_NUMBER})"
    rf"\s+{_NUMBER}\s+\S.{{0,500}}\((?P<function>[^()]{{1,100}})\)\s*$"
)
# The functions that are called once per step in an action of the advanced profiler.
_STEP_FUNCTIONS = ("run", "advance", "__next__")

STEP = "run_training_batch"
EPOCH = "run_training_epoch"
_WAITS = ("train_dataloader_next", "get_train_batch")  # newer and older versions


@dataclass(frozen=True)
class _Action:
    """Calls of one action."""

    mean_s: float
    calls: int
    line: int


class LightningProfileReader:
    """Reads the lines of ``FIT Profiler Report`` tables."""

    def __init__(self) -> None:
        self._has_counts: bool | None = None  # of the table that is being read
        self._actions: dict[str, _Action] = {}
        self._action: str | None = None  # of the advanced profiler
        self._first_line: int | None = None

    def add(self, number: int, text: str) -> None:
        """Take the next line of a log."""
        header = _HEADER.search(text) if "Mean duration (s)" in text else None
        if header is not None:
            self._has_counts = header["counts"] is not None
            self._first_line = self._first_line or number
        elif self._has_counts is not None and "|" in text:
            self._add_row(number, [cell.strip() for cell in text.strip().strip("|").split("|")])
        elif "Profile stats for: " in text:
            match = _ADVANCED.search(text)
            self._action = match["action"] if match else None
            self._first_line = self._first_line or number
        elif self._action is not None:
            self._add_function(number, text)

    def readings(self) -> tuple[LogReading, ...]:
        """Return the time of a step and of an epoch, and the wait for a batch."""
        step = self._actions.get(STEP)
        epoch = self._actions.get(EPOCH)
        wait = next(
            (
                action
                for name, action in self._actions.items()
                if name.endswith(_WAITS) and action.calls
            ),
            None,
        )
        readings = []
        if step is not None and wait is not None:
            # A step of the loop is the wait for its batch and the batch itself.
            whole = _Action(step.mean_s + wait.mean_s, step.calls, step.line)
            readings += [self._reading(Quantity.step, whole)]
            readings += [self._reading(Quantity.loader_wait, wait)]
        elif step is not None:
            readings += [self._reading(Quantity.step, step)]
        if epoch is not None:
            readings += [self._reading(Quantity.epoch, epoch)]
        return tuple(reading for reading in readings if is_time(reading.seconds[0]))

    def _reading(self, quantity: Quantity, action: _Action) -> LogReading:
        first = min(self._first_line or action.line, action.line)
        n_steps = action.calls if quantity != Quantity.epoch else None
        return LogReading(
            quantity, LogSource.lightning, (action.mean_s,), first, action.line, n_steps
        )

    def _add_row(self, number: int, cells: list[str]) -> None:
        columns = 4 if self._has_counts else 3
        if len(cells) < columns:
            return
        try:
            mean_s = float(cells[1])
            total_s = float(cells[3] if self._has_counts else cells[2])
            calls = int(cells[2]) if self._has_counts else round(total_s / mean_s)
        except (ValueError, ZeroDivisionError, OverflowError):  # such as the row of the total
            return
        # The total has more digits than a short mean.
        if calls > 0 and is_time(total_s / calls):
            self._keep(cells[0], _Action(total_s / calls, calls, number))

    def _add_function(self, number: int, text: str) -> None:
        if _CALLS_IN.search(text):
            return
        match = _FUNCTION.match(text)
        action = self._action
        if match is None or action is None or match["function"] not in _STEP_FUNCTIONS:
            return
        calls = int(match["calls"])
        seconds = float(match["seconds"])
        known = self._actions.get(action)
        is_outermost = known is None or seconds > known.mean_s * known.calls
        if calls > 0 and is_time(seconds / calls) and is_outermost:
            self._keep(action, _Action(seconds / calls, calls, number))

    def _keep(self, name: str, action: _Action) -> None:
        is_wanted = name in (STEP, EPOCH) or name.endswith(_WAITS)
        if is_wanted and (name in self._actions or len(self._actions) < 100):
            self._actions[name] = action
