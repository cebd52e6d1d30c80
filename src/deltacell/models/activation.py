"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch.nn import functional

from deltacell.errors import InputError

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"gelu": functional.gelu, "relu": functional.relu, "silu": functional.silu, "tanh": torch.tanh}
)
"""Functions of each number on its own."""


def activation_of(name: str) -> Activation:
    """Return an activation by its name; an unknown one is an error that lists those there are."""
    if name not in ACTIVATIONS:
        raise InputError(f"there is no activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
