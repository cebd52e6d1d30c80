"""Phases: where the wall time of every training step goes.

At every moment exactly one phase is current, and a clock is read when it changes. So the phases of
a row add up to its wall time, and there is no gap between the rows of a process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from torch.autograd import profiler as torch_profiler

from deltacell.profile.phase_rows import COLUMNS, PHASES
from deltacell.profile.row_files import RowFiles, prefix_of

_INDEX = {phase: index for index, phase in enumerate(PHASES)}


class PhaseTimer:
    """The phases of one process, in rows: one per training step, and one for work in between.

    A timer belongs to one thread. While torch's profiler is on, the current phase is a range
    ``phase.<name>`` of the trace. The ``clock`` is monotonic and returns nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._range: torch_profiler.record_function | None = None
        self._profiled = torch_profiler._is_profiler_enabled
        self._rows: list[tuple[Any, ...]] = []  # the COLUMNS after rank and attempt
        self._files = RowFiles("the phases")
        self.last_samples: int | None = None  # of the last row, if there is one
        self._index = _INDEX["other"]
        self._spent = [0] * len(PHASES)
        self._start = self._begin = self._since = clock()

    @property
    def current(self) -> str:
        """The name of the phase that is open."""
        return PHASES[self._index]

    def switch(self, phase: str) -> None:
        """End the current phase and begin another one."""
        self._settle()
        self._index = _INDEX[phase]
        if self._range is not None or torch_profiler._is_profiler_enabled:
            self.close()
            if torch_profiler._is_profiler_enabled:
                self._range = torch_profiler.record_function(f"phase.{phase}")
                self._range.__enter__()  # type: ignore[no-untyped-call]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Switch to a phase within a block, and back after it."""
        before = self.current
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Move at most these seconds of the open row to another phase; returns the seconds moved.

        This is for times known only afterwards, such as communication not hidden by the backward.
        """
        source = _INDEX[from_phase]
        target = _INDEX[to_phase]
        self._settle()
        moved = min(round(seconds * 1e9), self._spent[source])
        self._spent[source] -= moved
        self._spent[target] += moved
        return moved / 1e9

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        """Close the row; the next one begins at once, in the current phase.

        ``samples`` are those of this process alone. The kind is ``train`` for an optimizer step and
        ``between`` for work in between, such as validation.
        """
        self.last_samples = samples
        now = self._settle()
        profiled = torch_profiler._is_profiler_enabled
        # A trace is started and written between two rows, which counts for the next row.
        marked = profiled or self._profiled
        times = (self._begin - self._start, now - self._begin, *self._spent)
        self._rows.append((epoch, step, kind, samples, marked, *(time / 1e9 for time in times)))
        self._profiled = profiled
        self._spent = [0] * len(PHASES)
        self._begin = now
        # An open range would extend over the profiler's own mark of the step.
        self.close()

    def note_profiler(self) -> None:
        """Mark the open row as profiled, so that it does not count as a measurement."""
        self._profiled = True

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> None:
        """Write the new rows atomically; they are kept if that fails.

        ``attempt`` is how often this run was started before.
        """
        if not self._rows:
            return
        rows = [(rank, attempt, *row) for row in self._rows]
        content = pl.DataFrame(rows, COLUMNS, orient="row")
        self._files.add(Path(folder), prefix_of(rank, attempt), content)
        self._rows = []

    def close(self) -> None:
        """End the open range, if any."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def _settle(self) -> int:
        now = self._clock()
        self._spent[self._index] += now - self._since
        self._since = now
        return now


class NoTimer(PhaseTimer):
    """A timer that does nothing, to measure the cost of a real one."""

    def switch(self, phase: str) -> None:
        """Do nothing."""

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Do nothing, and return that no seconds were moved."""
        return 0.0

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        """Do nothing."""
