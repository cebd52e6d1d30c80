"""Shared by all predictors: recorded settings, checks of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from typing import Any, Self

from torch import nn

from deltacell.base.errors import InputError, did_you_mean
from deltacell.cell import Cell
from deltacell.profile.components import NamedRange
from deltacell.profile.record import Messages


class Recorded:
    """Records the arguments of the constructor except the cell, for the config of a run."""

    made_with: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        instance = super().__new__(cls)
        # copy.deepcopy calls this without arguments and then sets the state.
        try:
            bound = inspect.signature(cls.__init__).bind(instance, *args, **options).arguments
        except TypeError:
            bound = {}
        # nn.Module does not accept attributes before its constructor has run.
        arguments = {name: value for name, value in bound.items() if name not in ("self", "cell")}
        instance.__dict__["made_with"] = arguments
        return instance

    def messages(self) -> Messages | None:
        """Return on what messages are passed in a step; None if this is not known yet."""
        return Messages.nothing


def check_range(interval: str, **values: float) -> None:
    """Raise unless all values are in an interval such as ``"[0, 1)"``."""
    ends = interval[1:-1].split(",")
    low = float(ends[0])
    high = float(ends[1])
    for name, value in values.items():
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            what = f"{name} is {value}; expected a number in {interval}"
            raise InputError(what, code="out-of-range")


def check_choice(what: str, choice: str, allowed: Collection[str]) -> None:
    """Raise unless a choice, such as that of a metric, is an allowed one."""
    if choice not in allowed:
        message = f"unknown {what} '{choice}'{did_you_mean(choice, allowed)}; expected one of "
        raise InputError(message + ", ".join(allowed), code="unknown-choice")


def check_distinct(what: str, names: Collection[str]) -> None:
    """Raise if a name occurs twice."""
    if len(set(names)) != len(names):
        raise InputError(f"repeated {what}: {', '.join(names)}", code="repeated-name")


def check_heads(heads: int, hidden: int) -> None:
    """Raise unless the width can be divided among the attention heads."""
    if heads < 1 or hidden % heads:
        what = f"{heads} attention heads do not divide hidden={hidden}"
        raise InputError(what, code="heads-do-not-divide")


def checked_relations(cell: Cell, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of relations of a cell; raise if there is none, or an unknown one."""
    relations = tuple(names)
    if not relations:
        raise InputError("a model needs at least one relation", code="no-relation")
    check_distinct("relation", relations)
    for name in relations:
        cell.relation(name)
    return relations


def check_cell(**sizes: tuple[int, int]) -> None:
    """Raise unless a cell has the sizes that the model expects, given as (expected, found)."""
    for what, (expected, actual) in sizes.items():
        if expected != actual:
            differ = f"the model was made for {expected} {what}, but the cell has {actual}"
            raise InputError(differ, code="other-cell")


named_range = NamedRange
"""A context that profilers show by name, such as ``dango.encoder``, and that a run times."""


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer; only matrices and embeddings have weight decay."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
    for name, weight in module.named_parameters():
        own_name = name.rpartition(".")[2]
        is_gain_or_bias = "bias" in own_name or own_name.startswith("norm")
        groups[weight.ndim < 2 or is_gain_or_bias].append(weight)
    decays = zip(groups, (weight_decay, 0.0), strict=True)
    return [{"params": params, "weight_decay": decay} for params, decay in decays]
