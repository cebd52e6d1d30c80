"""Shared by the models: checks of what they are built for, and ranges that profilers show."""

from __future__ import annotations

from collections.abc import Iterable

from deltacell.base.checks import check_distinct
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.profile.components import NamedRange


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
