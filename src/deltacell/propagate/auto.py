"""The strategy `auto`, which chooses one by a rule, and all strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch

from deltacell.base.errors import InputError, did_you_mean
from deltacell.profile.record import Messages
from deltacell.propagate.base import Deleted, Mutants, Propagation, WildType
from deltacell.propagate.delta import Delta, Shared
from deltacell.propagate.hop import Hop, State, place_of
from deltacell.propagate.ladder import DeviceMask, EdgeMask, StoredEdges, StoredMasks, Subgraph
from deltacell.propagate.late import Late, is_late

REASONS = {
    "delta": "memory is bounded, or the device is a CPU, which can skip rows that do not change.",
    "late": "deletions act in one layer, and only the rows that they touch change.",
    "shared": "devices other than a CPU are fastest at whole products.",
}


def choose(hops: Sequence[Hop], device: torch.device, max_bytes: int | None = None) -> str:
    """Return the name of the strategy that `auto` uses for mutants that see the given hops."""
    if max_bytes is None and is_late(hops):
        return "late"
    return "delta" if max_bytes is not None or device.type == "cpu" else "shared"


class Auto(Propagation):
    """The strategy that `choose` returns, or the one that a resumed run has used."""

    name: ClassVar[str] = "auto"

    def __init__(self, max_bytes: int | None = None, choice: str | None = None) -> None:
        self.max_bytes, self.choice = max_bytes, choice

    def explain(self) -> str:
        if self.choice is None:
            return "The strategy is chosen with the first batch."
        return f"{self.choice}: {REASONS[self.choice]}"

    def messages(self) -> Messages | None:
        return None if self.choice is None else self._chosen().messages()

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        if self.choice is None:
            self.choice = choose(hops, place_of(hops)[0], self.max_bytes)
        return self._chosen().prepare(hops, deleted)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        return Shared().wild_type(hops, state)

    def mutants(self, hops: Sequence[Hop], *args: Any) -> Mutants:
        return self._chosen().mutants(hops, *args)

    def _chosen(self) -> Propagation:
        return STRATEGIES[cast(str, self.choice)](max_bytes=self.max_bytes)


_ALL = (Shared, Delta, Late, Auto, Subgraph, EdgeMask, StoredEdges, StoredMasks, DeviceMask)

STRATEGIES: Mapping[str, Callable[..., Propagation]] = {k.name: k for k in _ALL}


def strategy(name: str, **options: Any) -> Propagation:
    if name not in STRATEGIES:
        what = f"unknown propagation '{name}'{did_you_mean(name, STRATEGIES)}; expected one of "
        raise InputError(what + ", ".join(STRATEGIES), code="unknown-propagation")
    return STRATEGIES[name](**options)
