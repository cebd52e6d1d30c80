"""Which weights are decayed."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer: those that are decayed, and those that are not.

    Weight decay pulls a number to 0, which means "no effect" for a matrix or a vector that stands
    for something, and for no other: gains of norms, biases and scalar scales are left alone.

    Parameters
    ----------
    module
        A network.
    weight_decay
        Of the first group.
    """
    decayed: list[nn.Parameter] = []
    left_alone: list[nn.Parameter] = []
    for name, weight in module.named_parameters():
        own_name = name.rpartition(".")[2]
        is_gain_or_bias = "bias" in own_name or own_name.startswith("norm")
        (left_alone if weight.ndim < 2 or is_gain_or_bias else decayed).append(weight)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": left_alone, "weight_decay": 0.0},
    ]
