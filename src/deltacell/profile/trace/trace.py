"""A trace as columns with one row per event and interned names."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import Bools, Indices, Ints

# The names that profilers write.
NAMES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("names.toml").read_text(encoding="utf-8"),
)
NOTHING = -1  # the value in a column of numbers if an event has none


T = TypeVar("T")


class Kind(IntEnum):
    """What an event is, independent of how a version of PyTorch names its category."""

    operator = 0
    runtime = 1  # a call of the host into CUDA or ROCm
    kernel = 2  # including collectives
    copy = 3
    fill = 4
    annotation = 5  # a named range of the host
    device_annotation = 6  # the copy of such a range on the device
    python = 7
    other = 8  # such as the profiler's own overhead


ON_DEVICE = (Kind.kernel, Kind.copy, Kind.fill)


@dataclass(frozen=True)
class Thread:
    """A thread of the host or a stream of a device, with ids as written."""

    pid: str
    tid: str
    name: str = ""
    is_device: bool = False
    device: int | None = None


# Under this key, a program can add to its trace how many samples a step of the process has:
# profiler.add_metadata_json(SAMPLES_PER_STEP, "64").
SAMPLES_PER_STEP = "samples_per_step"


@dataclass(frozen=True, eq=False)
class Trace:
    """Events of one process, sorted by beginning and then from the longest to the shortest.

    Columns have one entry per event. Times are in nanoseconds, and the first event begins at 0.
    """

    path: Path
    names: tuple[str, ...]
    name: Indices  # an index into names
    kind: npt.NDArray[np.int8]
    begin: Ints
    duration: Ints
    thread: Indices  # an index into threads
    threads: tuple[Thread, ...]
    correlation: Ints  # shared by a call of the host and the device event that it caused
    sequence: Ints  # shared by a forward operator and its backward
    origin: int = 0  # the time of the first event, on a clock that the ranks share
    rank: int | None = None
    world_size: int | None = None
    torch_version: str | None = None
    device_name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the profiler
    warnings: tuple[str, ...] = ()
    stack: Indices = field(default_factory=lambda: np.empty(0, np.int32))  # into stacks, or empty
    stacks: tuple[str, ...] = ()  # in old traces: calls separated by ";", the innermost first
    shape: Indices = field(default_factory=lambda: np.empty(0, np.int32))  # into shapes, or empty
    shapes: tuple[tuple[str, str], ...] = ()  # sizes and types of operators' inputs, as written
    damage: str = ""  # why events are missing, if any are
    strange: Mapping[str, int] = field(default_factory=dict)  # events of unknown categories
    cycles: tuple[int, ...] = (0,)  # when each profiler cycle begins
    text_bytes: int = 0  # of the file, unpacked
    samples_per_step: float | None = None  # of this process, if the program recorded it

    def __len__(self) -> int:
        return len(self.begin)

    def ends(self, rows: Ints | Indices | Bools) -> Ints:
        """Return when some events end."""
        ends: Ints = self.begin[rows] + self.duration[rows]
        return ends

    def end(self, row: int) -> int:
        """Return when an event ends."""
        return int(self.begin[row] + self.duration[row])

    @property
    def on_device(self) -> Bools:
        """Which events are work of a device."""
        return np.isin(self.kind, ON_DEVICE)

    def named(self, test: Callable[[str], object]) -> Bools:
        """Return which events have a name that passes a test; each name is tested once."""
        passes_by_name = np.array([bool(test(name)) for name in self.names], dtype=bool)
        passes: Bools = passes_by_name[self.name]
        return passes

    def text(self, row: int) -> str:
        """Return the name of an event, which is untrusted: escape it where it is shown."""
        return self.names[int(self.name[row])]


def recoded(codes: dict[T, int], items: Iterable[T], column: Indices) -> Indices:
    """Translate codes of items to those in ``codes``, to which new items are added."""
    new_codes = [codes.setdefault(item, len(codes)) for item in items]
    # The last entry stands for no code.
    recoded: Indices = np.array([*new_codes, NOTHING], dtype=np.int32)[column]
    return recoded


def merge_cycles(cycles: Sequence[Trace]) -> Trace:
    """Return the cycles of one profiler as one trace, with times from the first one's origin."""
    first = cycles[0]
    if len(cycles) == 1:
        return first
    shifts = tuple(trace.origin - first.origin for trace in cycles)
    begins = [trace.begin + shift for trace, shift in zip(cycles, shifts, strict=True)]
    joined: dict[str, Any] = {
        "begin": np.concatenate(begins),
        "duration": np.concatenate([trace.duration for trace in cycles]),
        "kind": np.concatenate([trace.kind for trace in cycles]),
    }
    for name in ("correlation", "sequence"):
        joined[name] = _apart([getattr(trace, name) for trace in cycles])
    for name in ("name", "thread", "stack", "shape"):
        joined |= _joined_codes(cycles, name)
    warnings = list(chain.from_iterable(trace.warnings for trace in cycles))
    warnings.append(f"{len(cycles)} profiler cycles were read as one trace.")
    strange: dict[str, int] = {}
    for trace in cycles:
        strange |= trace.strange
    return replace(
        first,
        **joined,
        cycles=shifts,
        warnings=tuple(dict.fromkeys(warnings)),
        damage=next((trace.damage for trace in cycles if trace.damage), ""),
        strange=strange,
        text_bytes=sum(trace.text_bytes for trace in cycles),
    )


def _apart(numbers: Sequence[Ints]) -> Ints:
    """Return the numbers of all cycles, which may each count from the same one, made different."""
    n_numbers = max(int(column.max(initial=0)) for column in numbers) + 1
    parts = []
    for cycle, column in enumerate(numbers):
        parts.append(np.where(column >= 0, column + cycle * n_numbers, column))
    return np.concatenate(parts)


def _joined_codes(cycles: Sequence[Trace], name: str) -> dict[str, object]:
    """Return a column of codes and the items that they stand for, of all cycles together.

    A column that is empty in every cycle stays empty.
    """
    items: dict[object, int] = {}
    parts = []
    for trace in cycles:
        column = getattr(trace, name)
        if not len(column):
            column = np.full(len(trace), NOTHING, dtype=np.int32)
        parts.append(recoded(items, getattr(trace, f"{name}s"), column))
    joined: dict[str, object] = {f"{name}s": tuple(items)}
    if items:
        joined[name] = np.concatenate(parts)
    return joined
