"""Copies of nested values whose tensors are on another device, or in pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

Value = TypeVar("Value")


@runtime_checkable
class HasTensors(Protocol):
    """A value that knows which of its parts hold tensors, such as a `SparseMatrix`."""

    def with_tensors(self, function: Callable[[Tensor], Tensor]) -> object:
        """Return the value with a function applied to its tensors."""


class TensorMap:
    """Applies a function to each tensor of nested dataclasses, tuples and mappings.

    A tensor that occurs several times is mapped once, also over several calls. Values with a method
    ``with_tensors`` are mapped by it: of a `SparseMatrix` of a plan, the tensors that it has ready.
    Other values, among them the keys of mappings, stay as they are.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        # With the original, so that no identity is used again.
        self._mapped: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, value: Value) -> Value:
        """Return the value with all tensors mapped."""
        return cast(Value, self._of(value))

    def _of(self, value: object) -> object:
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, HasTensors):
            return value.with_tensors(self._of_tensor)
        if isinstance(value, tuple):
            items = tuple(self._of(item) for item in value)
            make = getattr(value, "_make", None)  # of a named tuple
            return items if make is None else make(items)
        if isinstance(value, Mapping):
            return {key: self._of(item) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            parts = {field.name: self._of(getattr(value, field.name)) for field in fields(value)}
            return type(value)(**parts)
        return value

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._mapped:
            self._mapped[id(tensor)] = (tensor, self._function(tensor))
        return self._mapped[id(tensor)][1]


def to_device(device: torch.device | str, *, non_blocking: bool = False) -> TensorMap:
    """Return what copies values to a device."""
    return TensorMap(lambda tensor: tensor.to(device, non_blocking=non_blocking))


def pinned_to_device(device: torch.device) -> TensorMap:
    """Return what copies values from the host to a device without waiting, each tensor once."""
    return TensorMap(lambda tensor: tensor.pin_memory().to(device, non_blocking=True))


def tensors_in(value: object) -> list[Tensor]:
    """Return the distinct tensors of a nested value, in order."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    TensorMap(note)(value)
    return tensors
