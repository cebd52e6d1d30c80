"""Phases: where the wall time of every training step goes.

At every moment exactly one phase is current, and a clock is read when it changes. So the phases of
a row add up to its wall time, and the rows of a process follow one another without a gap.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.autograd import profiler as torch_profiler

from deltacell.errors import InputError, StoreError
from deltacell.files import new_file
from deltacell.profile.phase_rows import KINDS, PHASES, next_part


class _Row(NamedTuple):
    epoch: int
    step: int
    kind: str
    samples: int
    profiled: bool
    begin: int
    wall: int
    spent: list[int]
    device: list[float | None]  # filled when the device has passed the end of the row


class _DeviceTimes:
    """Events on the device's stream at every switch, read when the device has passed them."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        self._waiting: deque[tuple[list[tuple[int, torch.cuda.Event]], list[float | None]]] = (
            deque()
        )

    def mark(self, phase: int) -> None:
        if not self._free:
            self._free.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._free.pop()
        event.record()
        self._marks.append((phase, event))

    def end_row(self, phase: int) -> list[float | None]:
        """Close a row, whose last event is the first of the next."""
        self.mark(phase)
        seconds: list[float | None] = [None] * len(PHASES)
        self._waiting.append((self._marks, seconds))
        self._marks = [self._marks[-1]]
        self.resolve()
        return seconds

    def resolve(self) -> None:
        """Read the rows that the device has passed, without waiting for it."""
        while self._waiting and self._waiting[0][0][-1][1].query():  # type: ignore[no-untyped-call]
            marks, seconds = self._waiting.popleft()
            spent = [0.0] * len(PHASES)
            for (phase, begin), (_, end) in pairwise(marks):
                spent[phase] += begin.elapsed_time(end) / 1e3
            seconds[:] = spent
            self._free.extend(event for _, event in marks[:-1])


class PhaseTimer:
    """The phases of one process, in rows: one per training step, and one for what lies between.

    It belongs to one thread. On CUDA an event is recorded at every switch, so that the device's own
    times are known too; the device is never waited for. While torch's profiler is on, the current
    phase is a range ``phase.<name>`` of the trace; with ``nvtx`` it is also an NVTX range. The
    ``clock`` returns nanoseconds and never goes back.
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
            try:
                torch.cuda.nvtx.range_push("phase.check")  # type: ignore[no-untyped-call]
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                raise InputError(
                    "this build of torch has no NVTX",
                    code="no-nvtx",
                    fix="Set profiler.nvtx=false, or install a build of torch with CUDA.",
                ) from error
        self._clock = clock
        self._nvtx = nvtx
        self._nvtx_open = False
        self._device = _DeviceTimes() if torch.device(device).type == "cuda" else None
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
        index = _INDEX[phase]
        self._spent[self._index] += now - self._since
        self._since = now
        self._index = index
        if self._marked or torch_profiler._is_profiler_enabled:
            self._mark()

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
        not hide. Times of the device stay as they are. Returns the seconds moved.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{seconds} seconds cannot be moved")
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
        if kind not in KINDS:
            raise ValueError(f"the kind of a row is '{kind}'; expected {' or '.join(KINDS)}")
        now = self._settle()
        device = [] if self._device is None else self._device.end_row(self._index)
        profiled = torch_profiler._is_profiler_enabled
        # What starts and writes a trace runs between two rows, so it falls into the next.
        marked = profiled or self._profiled
        times = (self._begin - self._start, now - self._begin, self._spent, device)
        self._rows.append(_Row(epoch, step, kind, samples, marked, *times))
        self._profiled = profiled
        self._spent = [0] * len(PHASES)
        self._begin = now
        # A range that stayed open would reach over the profiler's own mark of the step.
        self.close()

    def note_profiler(self) -> None:
        """Mark the open row as one with a profiler on, which does not count as a measurement."""
        self._profiled = True

    def flush(self, folder: str | os.PathLike[str], rank: int, attempt: int) -> Path | None:
        """Write the rows that are not yet in a file as a new part, all of it or nothing.

        ``attempt`` is how often this run was started before. Returns the file, if there were rows.
        Rows that could not be written are kept.
        """
        if not self._rows:
            return None
        if self._device is not None:
            self._device.resolve()
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = next_part(folder, rank, attempt)
            with new_file(path) as temporary:
                pq.write_table(self._table(rank, attempt), temporary, compression="zstd")
        except OSError as error:
            raise StoreError(
                f"the phases could not be written: {error.strerror or error}",
                code="not-written",
                where=folder,
                fix="Free some space; nothing was left half-written.",
            ) from error
        self._rows = []
        return path

    def close(self) -> None:
        """End the ranges that are open; this can be called at any time and more than once."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
            self._marked = self._nvtx or self._device is not None
        if self._nvtx_open:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            self._nvtx_open = False

    def _settle(self) -> int:
        now = self._clock()
        self._spent[self._index] += now - self._since
        self._since = now
        return now

    def _mark(self) -> None:
        if self._device is not None:
            self._device.mark(self._index)
        self.close()
        name = f"phase.{PHASES[self._index]}"
        if torch_profiler._is_profiler_enabled:
            self._range = torch_profiler.record_function(name)
            self._range.__enter__()  # type: ignore[no-untyped-call]
            self._marked = True
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
            self._nvtx_open = True

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
                times = [row.device[index] for row in rows]
                columns[f"device_{phase}_s"] = pa.array(times, pa.float64())
        return pa.table(columns)


class NoTimer:
    """A timer that does nothing, to see what the other one costs."""

    current = "other"
    rows_since_flush = 0

    def _nothing(self, *given: object, **options: object) -> None:
        pass

    switch = end_step = note_profiler = flush = close = __exit__ = _nothing

    def phase(self, name: str) -> NoTimer:
        """Return a block that does nothing."""
        return self

    def move(self, from_phase: str, to_phase: str, seconds: float) -> float:
        """Move nothing."""
        return 0.0

    def __enter__(self) -> None:
        pass


class _Index(dict[str, int]):
    def __missing__(self, phase: str) -> int:
        raise ValueError(f"unknown phase '{phase}'; the phases are {', '.join(PHASES)}")


_INDEX = _Index({phase: index for index, phase in enumerate(PHASES)})
_OTHER = _INDEX["other"]
