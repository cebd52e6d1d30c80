"""Shared by all predictors: recorded settings, checks of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Self

from deltacell.base.checks import check_distinct
from deltacell.base.errors import InputError
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
