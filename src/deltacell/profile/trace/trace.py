"""A trace as columns: one row an event, names interned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

NOTHING = -1
"""In a column of numbers: the event has none."""


class Kind(IntEnum):
    """What an event is, whatever the version of PyTorch called its category."""

    operator = 0
    runtime = 1  # a call of the host into CUDA or ROCm
    kernel = 2  # collectives are among them
    copy = 3
    fill = 4
    annotation = 5  # a named range of the host
    device_annotation = 6  # the same as the device saw it
    python = 7
    other = 8  # such as the profiler's own overhead


ON_DEVICE = (Kind.kernel, Kind.copy, Kind.fill)
"""Kinds whose time is the device's."""


@dataclass(frozen=True)
class Thread:
    """A thread of the host, or a stream of a device, with ids as written."""

    pid: str
    tid: str
    name: str = ""
    is_device: bool = False
    device: int | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Events of one process, by beginning; among those that begin together the longest is first.

    Columns have one entry per event, and `NOTHING` where it has none.

    Parameters
    ----------
    path
        The file.
    name, names, thread, threads
        Name and thread of each event as an index, int32 [n].
    kind
        One of `Kind`, int8 [n].
    begin, duration
        In nanoseconds, int64 [n]; the first event begins at 0, see ``origin``.
    correlation
        Shared by a call of the host and the event of the device that it caused, int64 [n].
    sequence
        Shared by a forward operator and its backward, int64 [n].
    parent
        The row of the Python function that a Python function was called from, int32 [n].
    origin
        The time of the first event as written, in nanoseconds, plus ``baseTimeNanoseconds`` where
        the trace has it, so that ranks share a clock.
    rank, world_size
        By ``distributedInfo`` or the file's name; None where neither tells.
    torch_version, device_name
        As written, or None.
    settings
        Settings of the profiler, where written, such as ``record_shapes`` and ``with_stack``.
    memory
        Where recorded, int64 [m] each, by time: ``time`` in nanoseconds, ``total`` bytes allocated
        after it, ``change`` in bytes, ``device`` (its type: 0 the host, 1 CUDA) and ``device_id``.
        Old traces have only changes; the total is then what was allocated since the trace began,
        and ``settings["memory_since_begin"]`` is true.
    warnings
        How it was read, in sentences.
    stack, stacks
        The Python call stack that old traces wrote with an operator, innermost call first, calls
        separated by ``;``, as an index, int32 [n]. Empty where no event has one; new traces have
        Python functions instead.
    shape, shapes
        Sizes and types of an operator's inputs as written, as an index, int32 [n]; or empty.
    damage
        Why events are missing, as a part of a sentence; empty where none are known to be.
    strange
        How many events are of categories that PyTorch does not have, by category.
    cycles
        When each profiler cycle begins; one where the trace is of one file.
    text_bytes
        How much text was read, unpacked.
    """

    path: Path
    names: tuple[str, ...]
    name: Codes
    kind: npt.NDArray[np.int8]
    begin: Ints
    duration: Ints
    thread: Codes
    threads: tuple[Thread, ...]
    correlation: Ints
    sequence: Ints
    parent: Codes
    origin: int = 0
    rank: int | None = None
    world_size: int | None = None
    torch_version: str | None = None
    device_name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Ints] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    stack: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    stacks: tuple[str, ...] = ()
    shape: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    shapes: tuple[tuple[str, str], ...] = ()
    damage: str = ""
    strange: Mapping[str, int] = field(default_factory=dict)
    cycles: tuple[int, ...] = (0,)
    text_bytes: int = 0

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def end(self) -> Ints:
        """The end of each event, int64 [n]."""
        return self.begin + self.duration

    def ends(self, rows: Ints | Codes) -> Ints:
        """Return the end of these events only, int64."""
        found: Ints = self.begin[rows] + self.duration[rows]
        return found

    @property
    def has_device(self) -> bool:
        """Whether anything ran on a device."""
        return bool(np.isin(self.kind, [int(kind) for kind in ON_DEVICE]).any())

    def named(self, test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Return which events have a name for which a test is true, bool [n]."""
        found = np.array([bool(test(name)) for name in self.names], dtype=bool)
        return found[self.name] if found.any() else np.zeros(len(self.name), dtype=bool)

    def text(self, row: int) -> str:
        """Return the name of an event; it is untrusted, so escape it where it is shown."""
        return self.names[int(self.name[row])]
