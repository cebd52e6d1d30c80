"""Phases: where the wall time of every training step goes.

At every moment exactly one phase is current, and a clock is read when it changes. So the phases of
a row add up to its wall time, and the rows of a process follow one another without a gap.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.autograd import profiler as torch_profiler

from deltacell.errors import InputError, StoreError
from deltacell.files import new_file
from deltacell.profile.phase_rows import KINDS, PHASES, next_part, part_name


class DeviceRow:
    """The device's seconds in each phase of a row, null until the device has passed its end."""

    __slots__ = ("marks", "seconds")

    def __init__(self, marks: list[tuple[int, torch.cuda.Event]], n_phases: int) -> None:
        self.marks = marks
        self.seconds: list[float | None] = [None] * n_phases


class DeviceTimes:
    """Events on the device's stream at every switch, read when the device has passed them."""

    def __init__(self, n_phases: int) -> None:
        self._n_phases = n_phases
        self._free: list[torch.cuda.Event] = []
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        self._waiting: deque[DeviceRow] = deque()

    def mark(self, phase: int) -> None:
        """Say that from here on the stream's work belongs to a phase."""
        event = self._free.pop() if self._free else _event()
        event.record()
        self._marks.append((phase, event))

    def end_row(self, phase: int) -> DeviceRow:
        """Close a row, whose last event is the first of the next."""
        self.mark(phase)
        row = DeviceRow(self._marks, self._n_phases)
        self._marks = [row.marks[-1]]
        self._waiting.append(row)
        self.resolve()
        return row

    def resolve(self) -> None:
        """Read the events of the rows that the device has passed, without waiting for it."""
        while self._waiting and self._waiting[0].marks[-1][1].query():  # type: ignore[no-untyped-call]
            row = self._waiting.popleft()
            seconds = [0.0] * self._n_phases
            for (phase, begin), (_, end) in zip(row.marks, row.marks[1:], strict=False):
                seconds[phase] += begin.elapsed_time(end) / 1e3
            row.seconds = list(seconds)
            self._free.extend(event for _, event in row.marks[:-1])
            row.marks = []


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class PhaseTimer:
    """The phases of one process, in rows: one a training step, and one for what lies between.

    It belongs to one thread. While torch's profiler is on, the current phase is a range
    ``phase.<name>`` of the trace, from a switch to the next or to the end of the row.

    Parameters
    ----------
    device
        Where the work is done. On CUDA an event is recorded at every switch, so that the device's
        own times are known too; the device is never waited for.
    nvtx
        Whether phases are also NVTX ranges.
    clock
        Nanoseconds, never going back.
    """

    __slots__ = (
        *("_begin", "_clock", "_device", "_index", "_marked", "_nvtx", "_nvtx_open"),
        *("_profiled", "_range", "_rows", "_since", "_spent", "_start"),
    )

    def __init__(
        self,
        device: str | torch.device = "cpu",
        nvtx: bool = False,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if nvtx:
            _check_nvtx()
        self._clock = clock
        self._nvtx = nvtx
        self._nvtx_open = False
        self._device = DeviceTimes(len(PHASES)) if torch.device(device).type == "cuda" else None
        self._range: torch_profiler.record_function | None = None
        self._marked = nvtx or self._device is not None
        self._profiled = torch_profiler._is_profiler_enabled
        self._rows: list[_Row] = []
        self._index = _OTHER
        self._spent = [0] * len(PHASES)
        self._start = self._begin = self._since = clock()
        if self._device is not None:
            self._device.mark(_OTHER)

    @property
    def current(self) -> str:
        """The phase that time goes to now."""
        return PHASES[self._index]

    @property
    def rows_since_flush(self) -> int:
        """How many rows are not yet in a file."""
        return len(self._rows)

    def switch(self, phase: str) -> None:
        """Let time go to this phase from now on."""
        now = self._clock()
        try:
            index = _INDEX[phase]
        except KeyError:
            raise _unknown(phase) from None
        self._spent[self._index] += now - self._since
        self._since = now
        self._index = index
        if self._marked or torch_profiler._is_profiler_enabled:
            self._mark()

    def phase(self, name: str) -> _Within:
        """Return a block in which time goes to this phase, and after it to the one before."""
        return _Within(self, name)

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Move time of the open row from one phase to another, at most what is there.

        This is for what is known only afterwards, such as the communication that the backward
        could not hide. Times of the device stay as they are. Returns the seconds moved.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{seconds} seconds cannot be moved")
        for name in (from_phase, to_phase):
            if name not in _INDEX:
                raise _unknown(name)
        self._settle()
        moved = min(round(seconds * 1e9), self._spent[_INDEX[from_phase]])
        self._spent[_INDEX[from_phase]] -= moved
        self._spent[_INDEX[to_phase]] += moved
        return moved / 1e9

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        """Close the row. The next begins at once, in the phase that is current.

        Parameters
        ----------
        epoch, step
            Where the training is.
        samples
            What this process worked on: its share of the batch, not the whole.
        kind
            ``train`` for an optimizer step; ``between`` for what lies between, such as a
            validation.
        """
        if kind not in KINDS:
            raise ValueError(f"a row is one of {', '.join(KINDS)}, and '{kind}' was given")
        now = self._settle()
        device = None if self._device is None else self._device.end_row(self._index)
        profiled = torch_profiler._is_profiler_enabled
        # What starts and writes a trace runs between two rows, so it falls into the next.
        marked = profiled or self._profiled
        times = (self._begin - self._start, now - self._begin, self._spent, device)
        self._rows.append(_Row(epoch, step, kind, samples, marked, *times))
        self._profiled = profiled
        self._spent = [0] * len(PHASES)
        self._begin = now
        # A range that stayed open would reach over the profiler's own mark of the step.
        self._close_ranges()

    def note_profiler(self) -> None:
        """Say that a profiler is on in the open row, so that it does not count as a measurement."""
        self._profiled = True

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> Path | None:
        """Write the rows that are not yet in a file as a new part, all of it or nothing.

        The folder is made where it is missing; ``attempt`` is how often this run was started
        before. Returns the file, or None without rows; rows that could not be written are kept.
        """
        if not self._rows:
            return None
        if self._device is not None:
            self._device.resolve()
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / part_name(rank, attempt, next_part(folder, rank, attempt))
            with new_file(path) as temporary:
                pq.write_table(self._table(rank, attempt), temporary, compression="zstd")
        except OSError as error:
            raise StoreError(
                f"the phases could not be written: {error.strerror or error}",
                where=folder,
                fix="Free some space; nothing was left half-written.",
            ) from error
        self._rows = []
        return path

    def close(self) -> None:
        """End the ranges that are open. It can be called at any time and more than once."""
        self._close_ranges()

    def _settle(self) -> int:
        now = self._clock()
        self._spent[self._index] += now - self._since
        self._since = now
        return now

    def _mark(self) -> None:
        if self._device is not None:
            self._device.mark(self._index)
        self._close_ranges()
        name = f"phase.{PHASES[self._index]}"
        if torch_profiler._is_profiler_enabled:
            self._range = torch_profiler.record_function(name)
            self._range.__enter__()  # type: ignore[no-untyped-call]
            self._marked = True
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
            self._nvtx_open = True

    def _close_ranges(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
            self._marked = self._nvtx or self._device is not None
        if self._nvtx_open:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            self._nvtx_open = False

    def _table(self, rank: int, attempt: int) -> pa.Table:
        rows = self._rows
        columns: dict[str, Any] = {
            "rank": [rank] * len(rows),
            "attempt": [attempt] * len(rows),
            **{
                name: [getattr(row, name) for row in rows]
                for name in ("epoch", "step", "kind", "samples", "profiled")
            },
            "begin_s": np.array([row.begin for row in rows], dtype=np.int64) / 1e9,
            "wall_s": np.array([row.wall for row in rows], dtype=np.int64) / 1e9,
        }
        spent = np.array([row.spent for row in rows], dtype=np.int64) / 1e9
        for index, phase in enumerate(PHASES):
            columns[f"{phase}_s"] = spent[:, index]
        if self._device is not None:
            for index, phase in enumerate(PHASES):
                times = [row.device.seconds[index] if row.device else None for row in rows]
                columns[f"device_{phase}_s"] = pa.array(times, pa.float64())
        return pa.table(columns)


class NoTimer:
    """A timer that does nothing, to see what the other one costs."""

    current = "other"
    rows_since_flush = 0

    def switch(self, phase: str) -> None:
        """Do nothing."""

    def phase(self, name: str) -> NoTimer:
        """Return a block that does nothing."""
        return self

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Move nothing."""
        return 0.0

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        """Do nothing."""

    def note_profiler(self) -> None:
        """Do nothing."""

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> Path | None:
        """Write nothing."""
        return None

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


class _Row(NamedTuple):
    epoch: int
    step: int
    kind: str
    samples: int
    profiled: bool
    begin: int
    wall: int
    spent: list[int]
    device: DeviceRow | None


class _Within:
    __slots__ = ("_before", "_name", "_timer")

    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer = timer
        self._name = name
        self._before = name

    def __enter__(self) -> None:
        self._before = self._timer.current
        self._timer.switch(self._name)

    def __exit__(self, *exception: object) -> None:
        self._timer.switch(self._before)


_INDEX = {phase: index for index, phase in enumerate(PHASES)}
_OTHER = _INDEX["other"]


def _unknown(phase: str) -> ValueError:
    return ValueError(f"there is no phase '{phase}'; the phases are {', '.join(PHASES)}")


def _check_nvtx() -> None:
    try:
        torch.cuda.nvtx.range_push("phase.check")  # type: ignore[no-untyped-call]
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise InputError(
            "NVTX ranges were asked for, and this build of torch has none",
            fix="Set profiler.nvtx=false, or install a build of torch with CUDA.",
        ) from error
