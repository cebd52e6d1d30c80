"""An event as the file has it: only what is needed of it, and what its category means."""

from __future__ import annotations

import functools
import operator
from typing import Any

import msgspec

from deltacell.profile.trace.trace import NOTHING, Kind

NO_TEXT = msgspec.Raw(b"")
"""Of an event that says nothing of its inputs."""


class Arguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "sequence": "Sequence number",
        "external": "External id",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "types": "Input type",
        "stack": "Call stack",
        "python_id": "Python id",
        "python_parent": "Python parent id",
        "changed": "Bytes",
        "allocated": "Total Allocated",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    """What an event says beside its name and time, under the words of PyTorch's profiler."""

    # In the order in which they are written, which is the fastest to read.
    external: int = NOTHING
    device: int = NOTHING
    correlation: int = NOTHING
    sequence: int = NOTHING
    dims: msgspec.Raw = NO_TEXT
    old_dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    stack: str | None = None
    python_id: int = NOTHING
    python_parent: int | None = None
    changed: int = 0
    allocated: int | None = None
    device_type: int = NOTHING
    device_id: int = NOTHING
    name: Any = None


WITHOUT_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag=""):
    """An event of the Chrome trace format, one class for each phase; times in microseconds."""

    cat: str | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    args: Arguments = WITHOUT_ARGUMENTS


class Complete(Event, gc=False, tag="X"):
    """An event with a duration."""


class Begin(Event, gc=False, tag="B"):
    """The beginning of an event whose end is another one."""


class End(Event, gc=False, tag="E"):
    """An end."""


class Metadata(Event, gc=False, tag="M"):
    """A name of a process or thread."""


class Instant(Event, gc=False, tag="i"):
    """A moment, such as an allocation."""


class OldInstant(Event, gc=False, tag="I"):
    """The same in old traces."""


CLASSES = {"X": Complete, "B": Begin, "E": End, "M": Metadata, "i": Instant, "I": OldInstant}
"""Events of which something is needed, by phase."""

PASSED_OVER = frozenset([*"CbnestfPNODSTpFRcVva()=", ","])
"""Phases of the Chrome trace format of which nothing is needed."""

ANY_EVENT: Any = functools.reduce(
    operator.or_,
    [
        *CLASSES.values(),
        *(
            msgspec.defstruct(f"Phase{ord(phase)}", [], gc=False, tag_field="ph", tag=phase)
            for phase in sorted(PASSED_OVER)
        ),
    ],
)
"""What a piece of a trace is decoded as: of a phase that is passed over nothing is kept."""


def kind_of(category: str | None) -> Kind:
    """Return what a category means, whichever version of PyTorch, Kineto or ROCm wrote it."""
    if category is None:
        return Kind.operator
    return _KINDS[word] if (word := category.strip().lower()) in _KINDS else Kind.other


def is_known(category: str) -> bool:
    """Return whether a category is one that PyTorch writes."""
    return (word := category.strip().lower()) in _KINDS or word in _OF_THE_PROFILER


def kind_by_name(name: str, kind: Kind) -> Kind:
    """Return the kind of an event whose category is too wide for it.

    Old versions wrote named ranges as operators; ROCm writes copies and fills as kernels.
    """
    if kind is Kind.operator and name.startswith(_RANGES):
        return Kind.annotation
    if kind is Kind.kernel and name.startswith(_COPIES):
        return Kind.copy
    if kind is Kind.kernel and name.startswith(_FILLS):
        return Kind.fill
    return kind


_KINDS = {
    "operator": Kind.operator,
    "cpu_op": Kind.operator,
    "runtime": Kind.runtime,
    "cuda_runtime": Kind.runtime,
    "cuda_driver": Kind.runtime,
    "hip_runtime": Kind.runtime,
    "hip_driver": Kind.runtime,
    "xpu_runtime": Kind.runtime,
    "xpu_driver": Kind.runtime,
    "privateuse1_runtime": Kind.runtime,
    "privateuse1_driver": Kind.runtime,
    "kernel": Kind.kernel,
    "gpu_op": Kind.kernel,
    "memcpy": Kind.copy,
    "gpu_memcpy": Kind.copy,
    "memset": Kind.fill,
    "gpu_memset": Kind.fill,
    "user_annotation": Kind.annotation,
    "record_function": Kind.annotation,
    "gpu_user_annotation": Kind.device_annotation,
    "python_function": Kind.python,
    "mtia_runtime": Kind.runtime,
    "mtia_ccp_events": Kind.kernel,
    "hpu_op": Kind.kernel,
    "xpu_op": Kind.kernel,
    "privateuse1_kernel": Kind.kernel,
}
_OF_THE_PROFILER = {
    *("trace", "overhead", "cuda_sync", "cuda_profiler_range", "external_correlation", "ac2g"),
    *("cpu_instant_event", "cpu_op_instant", "fwdbwd", "async_gpu", "async_cpu_to_gpu", ""),
    *("forward_backward", "collective_comm", "mtia_insight", "glow_runtime", "function_events"),
}
_RANGES = (
    "ProfilerStep#",
    "ProfilerStep*",
    "enumerate(DataLoader)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "DistributedDataParallel.forward",
    "phase.",
    "## ",
    "[pl][",
    "nccl:",
    "gloo:",
)
_COPIES = (
    "Memcpy ",
    "CopyHostToDevice",
    "CopyDeviceToHost",
    "CopyDeviceToDevice",
    "__amd_rocclr_copyBuffer",
)
_FILLS = ("Memset ", "FillBuffer", "__amd_rocclr_fillBuffer")
