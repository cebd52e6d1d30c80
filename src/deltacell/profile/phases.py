"""Phases: where the wall time of every training step goes.

At every moment exactly one phase is current, and a clock is read when it changes. So the phases of
a row add up to its wall time, and the rows of a process follow one another without a gap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
from torch.autograd import profiler as torch_profiler

from deltacell.errors import StoreError
from deltacell.files import new_file
from deltacell.profile.phase_rows import COLUMNS, PHASES

_INDEX = {phase: index for index, phase in enumerate(PHASES)}
_OTHER = _INDEX["other"]


class PhaseTimer:
    """The phases of one process, in rows: one per training step, and one for what lies between.

    It belongs to one thread. While torch's profiler is on, the current phase is a range
    ``phase.<name>`` of the trace. The ``clock`` returns nanoseconds and never goes back.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._range: torch_profiler.record_function | None = None
        self._profiled = torch_profiler._is_profiler_enabled
        self._rows: list[tuple[Any, ...]] = []  # as in COLUMNS, after rank and attempt
        self._index = _OTHER
        self._spent = [0] * len(PHASES)
        self._start = self._begin = self._since = clock()

    @property
    def current(self) -> str:
        return PHASES[self._index]

    def switch(self, phase: str) -> None:
        self._settle()
        self._index = _INDEX[phase]
        if self._range is not None or torch_profiler._is_profiler_enabled:
            self.close()
            if torch_profiler._is_profiler_enabled:
                self._range = torch_profiler.record_function(f"phase.{phase}")
                self._range.__enter__()  # type: ignore[no-untyped-call]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Let time go to this phase within a block, and after it to the one before."""
        before = self.current
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Move time of the open row from one phase to another, at most what is there.

        This is for what is known only afterwards, such as the communication that the backward could
        not hide. Returns the seconds moved.
        """
        source, target = _INDEX[from_phase], _INDEX[to_phase]
        self._settle()
        moved = min(round(seconds * 1e9), self._spent[source])
        self._spent[source] -= moved
        self._spent[target] += moved
        return moved / 1e9

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        """Close the row; the next begins at once, in the phase that is current.

        ``samples`` are those of this process alone. The kind is ``train`` for an optimizer step and
        ``between`` for what lies between, such as a validation.
        """
        now = self._settle()
        profiled = torch_profiler._is_profiler_enabled
        # What starts and writes a trace runs between two rows, so it falls into the next.
        marked = profiled or self._profiled
        times = (self._begin - self._start, now - self._begin, *self._spent)
        self._rows.append((epoch, step, kind, samples, marked, *(time / 1e9 for time in times)))
        self._profiled = profiled
        self._spent = [0] * len(PHASES)
        self._begin = now
        # A range that stayed open would reach over the profiler's own mark of the step.
        self.close()

    def note_profiler(self) -> None:
        """Mark the open row as one with a profiler on, which does not count as a measurement."""
        self._profiled = True

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> None:
        """Write the rows that are not yet in a file as a new part, all of it or nothing.

        ``attempt`` is how often this run was started before. Rows that could not be written are
        kept.
        """
        if not self._rows:
            return
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = (f"rank{rank}-attempt{attempt}-part{part}.parquet" for part in count())
            path = next(folder / name for name in names if not (folder / name).exists())
            rows = [(rank, attempt, *row) for row in self._rows]
            with new_file(path) as temporary:
                pl.DataFrame(rows, COLUMNS, orient="row").write_parquet(temporary)
        except OSError as error:
            what = f"the phases could not be written: {error.strerror or error}"
            fix = "Free some space; nothing was left half-written."
            raise StoreError(what, code="not-written", where=folder, fix=fix) from error
        self._rows = []

    def close(self) -> None:
        """End the range that is open; this can be called at any time and more than once."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def _settle(self) -> int:
        now = self._clock()
        self._spent[self._index] += now - self._since
        self._since = now
        return now


class NoTimer(PhaseTimer):
    """A timer that does nothing, to see what the other one costs."""

    def switch(self, phase: str) -> None:
        pass

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        return 0.0

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        pass
