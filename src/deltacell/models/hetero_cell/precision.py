"""Modules in the precision of their inputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def in_precision_of(module: nn.Module, x: Tensor) -> Any:
    """Return ``module(x)`` in float64 if x is, and otherwise in the precision of the module."""
    dtype = next(module.parameters()).dtype
    if x.dtype != torch.float64 or dtype == torch.float64:
        return module(x.to(dtype))
    # The module itself must not change for a moment: other threads are using it.
    weights: dict[int, Any] = {id(p): p.double() for p in module.parameters()}
    return copy.deepcopy(module, weights)(x)
