"""What all predictors share: predictions, recorded settings, checks, activations, named ranges."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.cell import Cell
from deltacell.errors import InputError, did_you_mean

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"gelu": functional.gelu, "relu": functional.relu, "silu": functional.silu, "tanh": torch.tanh}
)


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a predictor says of a batch of genotypes; all but ``intermediate`` are [batch]."""

    score: Tensor  # the expected score of a genotype that is tested
    # Results by name, such as per-gene vectors or the scores of the two heads, for the losses.
    intermediate: dict[str, Tensor] = field(default_factory=dict)
    hit: Tensor | None = None  # the probability of a hit, for predictors of two parts
    given_hit: Tensor | None = None  # the expected score of a hit


class Recorded:
    """Keeps the arguments of the constructor except the cell, so that a run can be made of one."""

    made_with: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the object and keep its arguments as `made_with`."""
        made = super().__new__(cls)
        # A copy is created without arguments and then takes over the state of the original.
        try:
            bound = inspect.signature(cls.__init__).bind(made, *args, **options).arguments
        except TypeError:
            bound = {}
        bound = {name: value for name, value in bound.items() if name not in ("self", "cell")}
        bound |= bound.pop("options", {})
        # A torch module accepts no attribute before its own constructor has run.
        made.__dict__["made_with"] = bound
        return made


def check_range(interval: str, **values: float) -> None:
    """Raise unless all values are in an interval, written as ``"[0, 1)"``."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in values.items():
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            raise InputError(
                f"{name} is {value}; expected a number in {interval}",
                code="out-of-range",
                name=name,
                value=value,
            )


def check_choice(what: str, given: str, allowed: Collection[str]) -> None:
    """Raise unless a name is one of those allowed."""
    if given not in allowed:
        raise InputError(
            f"unknown {what} '{given}'{did_you_mean(given, allowed)}; "
            f"expected one of {', '.join(allowed)}",
            code="unknown-choice",
            given=given,
        )


def check_distinct(what: str, names: Collection[str]) -> None:
    """Raise if a name occurs twice."""
    if len(set(names)) != len(names):
        raise InputError(f"a {what} was given twice: {', '.join(names)}", code="repeated-name")


def check_heads(heads: int, hidden: int) -> None:
    """Raise unless a number of attention heads divides the width."""
    if heads < 1 or hidden % heads:
        divisors = ", ".join(str(d) for d in range(1, hidden + 1) if hidden % d == 0)
        raise InputError(
            f"{heads} attention heads do not divide hidden={hidden}",
            code="heads-do-not-divide",
            fix=f"Choose a number of heads among {divisors}, or another width.",
        )


def checked_relations(cell: Cell, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, at least one, each of a relation of the cell, none twice."""
    relations = tuple(names)
    if not relations:
        raise InputError("a model needs at least one relation", code="no-relation")
    check_distinct("relation", relations)
    for name in relations:
        cell.relation(name)
    return relations


def check_cell(**sizes: tuple[int, int]) -> None:
    """Raise unless a cell has the sizes that a model was made for, given as (made for, found)."""
    for what, (made_for, found) in sizes.items():
        if made_for != found:
            raise InputError(
                f"the model was made for {made_for} {what}, and the cell has {found}",
                code="other-cell",
            )


def activation_of(name: str) -> Activation:
    """Return the activation with that name, one of `ACTIVATIONS`."""
    check_choice("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def named_range(name: str) -> AbstractContextManager[object]:
    """Return a context that a recording profiler shows under a name such as ``dango.encoder``."""
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.autograd.profiler.record_function(name)
    return _NOTHING


_NOTHING: AbstractContextManager[object] = nullcontext()


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: with weight decay, and without.

    Only matrices and embeddings decay. For gains of norms, biases and scalar scales, 0 does not
    mean "no effect".
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


class StackedLinear(nn.Module):
    """k linear layers of one size in one product, initialised like `torch.nn.Linear`."""

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_uniform(k, n_in, n_out, n_in=n_in))
        self.bias = nn.Parameter(default_uniform(k, 1, n_out, n_in=n_in))

    def forward(self, x: Tensor) -> Tensor:
        """Return [k, m, n_out] for x [k, m, n_in]."""
        return torch.baddbmm(self.bias, x, self.weight)


def default_uniform(*shape: int, n_in: int) -> Tensor:
    """Draw weights as `torch.nn.Linear` does for n_in inputs."""
    bound = 1 / math.sqrt(n_in)
    return torch.empty(*shape).uniform_(-bound, bound)
