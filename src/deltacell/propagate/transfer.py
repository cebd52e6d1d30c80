"""Copies of nested values whose tensors are on another device, or in pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor

from deltacell.propagate.product import SparseMatrix

Value = TypeVar("Value")


class TensorMap:
    """Applies a function to each tensor of nested dataclasses, tuples and mappings.

    A tensor that occurs several times is mapped once, also over several calls. The tensors that a
    `SparseMatrix` of a plan has ready are mapped, and its arrays are not copied. Other values,
    among them the keys of mappings, stay as they are.
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
        if isinstance(value, SparseMatrix):
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


def tensors_in(value: object) -> list[Tensor]:
    """Return the distinct tensors of a nested value, in order."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    TensorMap(note)(value)
    return tensors
