"""A pretend device: tensors report ``gpu:0`` and hold real values on the CPU.

The code takes the branches of a device, and the results can be compared with the CPU's. Mixing
devices raises as it does on CUDA, and a `DeviceLog` notes what a device would make slow: waits of
the host, copies between host and device, the number of operations and the bytes they read and
write. Which operations make the host wait is knowledge of ATen's CUDA kernels;
``torch.cuda.set_sync_debug_mode`` decides once there is a GPU. What it cannot show: whether a CUDA
kernel exists for each type and layout, atomics, memory, streams, NCCL, `torch.compile`, autocast.

Importing this module registers the device for the whole process, so it has one of its own. The
registration in Python exists since PyTorch 2.9.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

SOURCE = "/src/deltacell/"

# What makes the host wait for a GPU, by the CUDA implementation of ATen.
WAITING = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "histc"),
        *("unique_consecutive", "equal", "is_nonzero", "bincount", "_linalg_check_errors"),
    )
)
INDEXING = frozenset(
    f"aten::{name}" for name in ("index", "index_put", "index_put_", "_index_put_impl_")
)


@dataclass(frozen=True)
class Event:
    """A wait or a copy, and the line of the program that caused it."""

    kind: str  # wait, copy (pinned and without waiting) or pageable
    operation: str
    place: str  # "models/dango/model.py:12"


@dataclass
class DeviceLog:
    """What was done on the pretend device."""

    events: Counter[Event] = field(default_factory=Counter)
    launches: int = 0
    n_bytes: int = 0

    def note(self, kind: str, operation: str) -> None:
        """Count an event at the line of the program that is being executed."""
        self.events[Event(kind, operation, _place())] += 1

    def of_kind(self, kind: str) -> dict[str, int]:
        """Return the numbers of events of one kind, by operation and place."""
        chosen = {event: n for event, n in self.events.items() if event.kind == kind}
        return {f"{event.operation} at {event.place}": n for event, n in chosen.items()}

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()
        self.launches = 0
        self.n_bytes = 0


LOG = DeviceLog()


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if SOURCE in name:
            return f"{name.split(SOURCE)[-1]}:{frame.f_lineno}"
        if "/tests/device/cases.py" in name:
            return f"cases.py:{frame.f_lineno}"
        frame = frame.f_back
    return "autograd"


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def synchronize(self, *args):
        LOG.note("wait", "synchronize")

    def current_stream(self, *args):
        return None

    def empty_cache(self):
        pass


_setup_privateuseone_for_python_backend("gpu", backend_module=_Module())
GPU = torch.device("gpu:0")
torch.__future__.set_swap_module_params_on_conversion(True)
# `torch.tensor(..., device=)` makes a tensor on the CPU first and then copies it.
torch._C._set_only_lift_cpu_tensors(True)
# Autocast casts nothing on this device, but code for it is executed.
_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


class PretendTensor(torch.Tensor):
    """A tensor that reports the pretend device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner):
        """Wrap a tensor on the CPU."""
        size = inner.size()
        is_strided = inner.layout is torch.strided
        strides = inner.stride() if is_strided else torch.empty(size, device="meta").stride()
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            size,
            strides=strides,
            storage_offset=inner.storage_offset() if is_strided else 0,
            dtype=inner.dtype,
            device=GPU,
        )
        tensor.inner = inner
        return tensor

    def __repr__(self, *, tensor_contents=None):
        """Show the values."""
        return f"PretendTensor({self.inner!r})"

    def tolist(self):
        """Return the values, for which the host has to wait."""
        LOG.note("wait", "tolist")
        return self.inner.tolist()

    def numpy(self, *args, **kwargs):
        """Raise an error, as CUDA tensors do."""
        raise TypeError("can't convert gpu device type tensor to numpy; use tensor.cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Compute on the CPU and note what a device would do."""
        return _run(func, args, kwargs or {})


class OnPretendDevice(TorchDispatchMode):
    """Makes new tensors on the pretend device, and copies to it; once per thread."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Compute on the CPU and note what a device would do."""
        return _run(func, args, kwargs or {})


class _PinnedMemory:
    """Knows which tensors are pinned, by their address; keeps the latest alive, and so distinct."""

    def __init__(self):
        self._latest = []

    def pin(self, tensor):
        pinned = tensor.clone()
        self._latest = [*self._latest[-4095:], pinned]
        return pinned

    def __contains__(self, tensor):
        return any(pinned.data_ptr() == tensor.data_ptr() for pinned in self._latest)


_PINNED = _PinnedMemory()


def on_device(value):
    """Return whether a value is a tensor on the pretend device."""
    return isinstance(value, PretendTensor)


def on_host(value):
    """Return whether a value is a tensor on the CPU."""
    return isinstance(value, Tensor) and not on_device(value) and value.device.type == "cpu"


def _run(func, args, kwargs):
    name = func._schema.name
    device = kwargs.get("device")
    wants_device = device is not None and torch.device(device).type == "gpu"
    leaves = tree_leaves((args, kwargs))
    if not wants_device and not any(on_device(leaf) for leaf in leaves):
        return _on_host(func, name, args, kwargs)
    if name == "aten::_to_copy":
        return _copied(func, args[0], kwargs, to_device=wants_device)
    if name == "aten::is_pinned":
        return False
    if name == "aten::_pin_memory":
        raise RuntimeError("cannot pin 'gpu' memory, only dense CPU tensors can be pinned")
    if name in ("aten::copy_", "aten::_copy_from"):
        if on_device(args[0]) != on_device(args[1]):
            LOG.note("wait", "copy_ to the device" if on_device(args[0]) else "copy_ to the host")
    else:
        _check_devices(name, args, kwargs)
    _note_waits(func, name, args, kwargs)
    return _computed(func, args, kwargs, leaves, wants_device=wants_device)


def _on_host(func, name, args, kwargs):
    if name == "aten::_pin_memory":
        return _PINNED.pin(args[0])
    if name == "aten::is_pinned":
        return args[0] in _PINNED
    return func(*args, **kwargs)


def _copied(func, tensor, kwargs, *, to_device):
    """Copy between host and device, or convert on the device."""
    to_device = to_device or (on_device(tensor) and kwargs.get("device") is None)
    inner = tensor.inner if on_device(tensor) else tensor
    options = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
    copy = func(inner, **options)
    if on_device(tensor) and not to_device:
        LOG.note("wait", "copy to the host")
        return copy
    if on_device(tensor):
        LOG.launches += 1
    else:
        is_pinned = not tensor.numel() or tensor in _PINNED
        is_free = is_pinned and kwargs.get("non_blocking", False)
        LOG.note("copy" if is_free else "pageable", "copy to the device")
    return PretendTensor(copy.clone() if copy is inner else copy)


def _check_devices(name, args, kwargs):
    """Raise for a tensor on the host next to one on the device, as ATen does.

    Scalars may be on the host, and so may the indices of an indexing operation.
    """
    operands = [a for i, a in enumerate(args) if not (name in INDEXING and i == 1)]
    for tensor in tree_leaves((operands, kwargs)):
        if on_host(tensor) and tensor.ndim:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found gpu:0 and cpu ({name} "
                f"at {_place()})"
            )


def _note_waits(func, name, args, kwargs):
    if name in WAITING:
        LOG.note("wait", name)
    is_repeat = name == "aten::repeat_interleave" and func._overloadname == "Tensor"
    if is_repeat and kwargs.get("output_size") is None:
        LOG.note("wait", "repeat_interleave without output_size")
    if name in INDEXING:
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                LOG.note("wait", f"{name} with a mask")
            if on_host(index):
                LOG.note("wait", f"{name} with an index on the host")


def _computed(func, args, kwargs, leaves, *, wants_device):
    def inner(value):
        return tree_map_only(PretendTensor, lambda tensor: tensor.inner, value)

    options = inner(dict(kwargs))
    if wants_device:
        options["device"] = torch.device("cpu")
    if options.get("pin_memory"):
        options["pin_memory"] = False
    result = func(*inner(args), **options)
    if not func.is_view:
        LOG.launches += 1
        read = sum(_n_bytes(leaf.inner) for leaf in leaves if on_device(leaf))
        written = sum(_n_bytes(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        LOG.n_bytes += read + written

    def wrapped(value):
        is_plain = isinstance(value, Tensor) and not on_device(value)
        return PretendTensor(value) if is_plain else value

    outputs = tree_map(wrapped, result)
    if not any(on_device(leaf) for leaf in leaves) or not isinstance(result, Tensor | tuple | list):
        return outputs
    return return_and_correct_aliasing(func, args, kwargs, outputs)


def _n_bytes(tensor):
    if tensor.layout is torch.strided:
        return tensor.nbytes
    parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    return sum(part.nbytes for part in parts)
