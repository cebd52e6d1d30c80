"""Which strategy a run uses: by name, or by the rule of `auto`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from deltacell.base.errors import InputError, did_you_mean
from deltacell.propagate.delta import Delta
from deltacell.propagate.hop import HopShape
from deltacell.propagate.late import Late, is_late
from deltacell.propagate.reference import (
    DeviceMask,
    EdgeMask,
    StoredEdges,
    StoredMasks,
    Subgraph,
)
from deltacell.propagate.shared import Shared
from deltacell.propagate.strategy import AnyStrategy

AUTO = "auto"


class Reason(StrEnum):
    """Why a run uses its strategy."""

    configured = "set in the config"
    bounded_memory = "memory is bounded, and only `delta` respects a bound"
    one_layer = "deletions act in one layer, and only the rows that they touch change"
    cpu = "the device is a CPU, which can skip rows that do not change"
    whole_products = "devices other than a CPU are fastest at whole products"
    recorded = "chosen in an earlier attempt of this run"


@dataclass(frozen=True)
class Choice:
    """The name of a strategy, and why it was chosen."""

    name: str
    reason: Reason

    def __str__(self) -> str:
        """Return a sentence."""
        return f"{self.name}: {self.reason}."


def choose(
    shapes: Sequence[HopShape],
    device: torch.device,
    max_bytes: int | None = None,
) -> Choice:
    """Return the strategy that `auto` uses for mutants that see these hops.

    The first that applies:

    1. `delta` if memory is bounded, because it alone respects a bound;
    2. `late` if deletions act in one layer over the relations;
    3. `delta` on a CPU, which can skip rows;
    4. `shared` on any other device, where one launch for all rows costs less than finding some.
    """
    if max_bytes is not None:
        return Choice("delta", Reason.bounded_memory)
    if is_late(shapes):
        return Choice("late", Reason.one_layer)
    if device.type == "cpu":
        return Choice("delta", Reason.cpu)
    return Choice("shared", Reason.whole_products)


@dataclass(frozen=True, eq=False)
class ChosenStrategy:
    """The strategy of a run that `auto` has chosen; there is one object per run."""

    request: Auto
    device_type: str
    choice: Choice
    strategy: AnyStrategy

    def is_for(self, request: Auto, device: torch.device) -> bool:
        """Return whether this is the choice for a request on a device."""
        return self.request is request and self.device_type == device.type


@dataclass(frozen=True, eq=False)
class Auto:
    """The request to choose a strategy with the first batch, when hops and device are known.

    `choice` is the name that an earlier attempt of the run has recorded.
    """

    max_bytes: int | None = None
    choice: str | None = None

    def choose(self, shapes: Sequence[HopShape], device: torch.device) -> ChosenStrategy:
        """Return the strategy that was recorded, or that of the rule, see `choose`."""
        if self.choice is None:
            choice = choose(shapes, device, self.max_bytes)
        else:
            choice = Choice(self.choice, Reason.recorded)
        bound = {} if self.max_bytes is None else {"max_bytes": self.max_bytes}
        return ChosenStrategy(self, device.type, choice, STRATEGIES[choice.name](**bound))


STRATEGIES: Mapping[str, Callable[..., AnyStrategy]] = {
    "shared": Shared,
    "delta": Delta,
    "late": Late,
    "subgraph": Subgraph,
    "edge_mask": EdgeMask,
    "stored_edges": StoredEdges,
    "stored_masks": StoredMasks,
    "device_mask": DeviceMask,
}

NAMES = (*list(STRATEGIES)[:3], AUTO, *list(STRATEGIES)[3:])
"""The values of `propagation`, and the strategies with a store, which a config cannot name."""


def strategy(name: str, **options: object) -> AnyStrategy | Auto:
    """Return a strategy by its name; `auto` chooses one when it is first used."""
    if name == AUTO:
        return Auto(**options)  # type: ignore[arg-type]
    if name not in STRATEGIES:
        raise InputError(
            f"unknown propagation '{name}'{did_you_mean(name, NAMES)}; expected one of "
            + ", ".join(NAMES),
            code="unknown-propagation",
        )
    return STRATEGIES[name](**options)
