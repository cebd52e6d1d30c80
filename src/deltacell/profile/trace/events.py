"""An event as the file has it: only what is needed of it, and what its category means."""

from __future__ import annotations

from typing import Any

import msgspec

from deltacell.profile.trace.trace import NOTHING, Kind


class Arguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "sequence": "Sequence number",
        "external": "External id",
        "stack": "Call stack",
        "python_id": "Python id",
        "python_parent": "Python parent id",
        "changed": "Bytes",
        "allocated": "Total Allocated",
        "device_type": "Device Type",
        "device_id": "Device Id",
        "collective": "Collective name",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "group_size": "Group size",
        "group": "Process Group Name",
        "group_description": "Process Group Description",
        "group_ranks": "Process Group Ranks",
    },
):
    """What an event says beside its name and time, under the words of PyTorch's profiler."""

    # In the order in which they are written, which is the fastest to read.
    external: int = NOTHING
    device: int = NOTHING
    stream: int = NOTHING
    correlation: int = NOTHING
    bytes: int = NOTHING
    sequence: int = NOTHING
    stack: str | None = None
    python_id: int = NOTHING
    python_parent: int | None = None
    changed: int = 0
    allocated: int | None = None
    device_type: int = NOTHING
    device_id: int = NOTHING
    collective: str | None = None
    elements_in: Any = None
    elements_out: Any = None
    dtype: Any = None
    group_size: Any = None
    group: Any = None
    group_description: Any = None
    group_ranks: Any = None
    name: Any = None


WITHOUT_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format; times in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    args: Arguments = WITHOUT_ARGUMENTS


def kind_of(category: str | None) -> Kind:
    """Return what a category means, whichever version of PyTorch, Kineto or ROCm wrote it."""
    if category is None:
        return Kind.operator
    return _KINDS[word] if (word := category.strip().lower()) in _KINDS else Kind.other


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
