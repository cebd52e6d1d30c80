"""Optimizers of PyTorch by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from deltacell.base.errors import InputError
from deltacell.train.config import OptimizerConfig
from deltacell.train.config.keys import unknown_name

_NEEDS_CLOSURE = "LBFGS"  # it computes the loss several times per step
_OWN_KEYS = ("lr", "weight_decay")  # in `OptimizerConfig`, and not in its options


def optimizer_names() -> list[str]:
    """Return the optimizers that a config can name."""
    return sorted(
        name
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and name not in ("Optimizer", _NEEDS_CLOSURE)
    )


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return a new optimizer; only matrices and embeddings have weight decay.

    The fused implementation is used where there is one, unless the options say otherwise. The
    learning rate is the initial one; `OptimizerStep` overwrites it before every update with what
    `LearningRate` says of the position.
    """
    names = optimizer_names()
    if config.name not in names:
        raise unknown_name("optimizer.name", config.name, names)
    optimizer_class = getattr(torch.optim, config.name)
    allowed = inspect.signature(optimizer_class.__init__).parameters
    _check_options(config, allowed)
    options = dict(config.options)
    if "fused" in allowed and "foreach" not in options:
        options.setdefault("fused", True)
    groups = parameter_groups(module, config.weight_decay)
    try:
        # Only a first value, see above; but the optimizer checks it here.
        optimizer: torch.optim.Optimizer = optimizer_class(groups, lr=config.lr, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"optimizer.name={config.name} refuses its options: {error}"
        raise InputError(message, code="out-of-range", key="optimizer.options") from error
    return optimizer


def _check_options(config: OptimizerConfig, allowed: Mapping[str, inspect.Parameter]) -> None:
    """Raise for an option that the optimizer does not have, or that has a key of its own."""
    for option in config.options:
        key = f"optimizer.options.{option}"
        if option in _OWN_KEYS:
            message = f"{key} has a key of its own, optimizer.{option}"
            raise InputError(message, code="conflicting-settings", key=key)
        if option not in allowed or option in ("self", "params"):
            message = f"{config.name} has no option '{option}'"
            fix = f"See the arguments of torch.optim.{config.name}."
            raise InputError(message, code="unknown-key", fix=fix, key=key)


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer; only matrices and embeddings have weight decay."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
    for name, weight in module.named_parameters():
        own_name = name.rpartition(".")[2]
        is_gain_or_bias = "bias" in own_name or own_name.startswith("norm")
        groups[weight.ndim < 2 or is_gain_or_bias].append(weight)
    decays = zip(groups, (weight_decay, 0.0), strict=True)
    return [{"params": params, "weight_decay": decay} for params, decay in decays]
