"""The strategy `auto`, which chooses one by a rule, and all strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch

from deltacell.errors import InputError, did_you_mean
from deltacell.propagate.delta import Delta
from deltacell.propagate.dense import Dense
from deltacell.propagate.hop import GENE, Hop, Readout, State, place_of
from deltacell.propagate.ladder import DeviceMask, EdgeMask, StoredEdges, StoredMasks, Subgraph
from deltacell.propagate.late import Late, is_late
from deltacell.propagate.protocol import Deleted, Mutants, Propagation, WildType
from deltacell.propagate.shared import Shared


@dataclass(frozen=True)
class Choice:
    """What `auto` chose, and why in a sentence."""

    strategy: str
    reason: str


def choose(hops: Sequence[Hop], device: torch.device, max_bytes: int | None = None) -> Choice:
    """Return the strategy for mutants that see the given hops: the rule of `auto`.

    1. ``delta`` where memory is bounded, because it is the one that keeps to a bound.
    2. ``late`` where deletions act in a single hop over the relations: it computes the rows that
       they touch and nothing else, and no other strategy does less.
    3. ``delta`` on a CPU, where leaving out rows that do not change saves time on every relation
       that is not dense.
    4. ``shared`` elsewhere: a device is faster at one large product than at many small ones.
    """
    if max_bytes is not None:
        return Choice("delta", f"it keeps to the bound of {max_bytes:,} bytes.")
    if is_late(hops):
        return Choice("late", "deletions act in one layer, and only the rows they touch change.")
    if device.type == "cpu":
        return Choice("delta", "on a CPU, rows that do not change are left out.")
    return Choice("shared", f"on {device.type}, whole products are the fastest.")


class Auto:
    """One of the other strategies, by the rule of `choose`.

    Parameters
    ----------
    max_bytes
        Bound on the memory of a batch, see `Delta`.
    choice
        A recorded one, which is kept: that of the run to resume, or of another rank.
    """

    def __init__(self, max_bytes: int | None = None, choice: Choice | None = None) -> None:
        self.max_bytes = max_bytes
        self.choice = choice

    name = "auto"

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> Auto:
        """Make it from what `to_json` returned: the same choice again."""
        try:
            choice = None if recorded["choice"] is None else Choice(**recorded["choice"])
            max_bytes = recorded["max_bytes"]
        except (KeyError, TypeError) as error:
            raise InputError(
                f"not a recorded propagation: {error}", code="bad-propagation-record"
            ) from error
        if choice is not None and choice.strategy not in ("shared", "delta", "late"):
            raise InputError(
                f"the recorded propagation is '{choice.strategy}'; expected shared, delta or late",
                code="bad-propagation-record",
            )
        return cls(max_bytes, choice)

    def to_json(self) -> dict[str, Any]:
        """Return the choice, for a run's record; None before the first batch."""
        choice = None if self.choice is None else asdict(self.choice)
        return {"max_bytes": self.max_bytes, "choice": choice}

    def explain(self) -> str:
        """Return what was chosen and why."""
        if self.choice is None:
            return "Nothing is chosen yet; that happens with the first batch."
        return f"{self.choice.strategy}: {self.choice.reason}"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch; the first time, choose."""
        if self.choice is None:
            self.choice = choose(hops, place_of(hops)[0], self.max_bytes)
        return self._chosen(hops).prepare(hops, deleted)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, in the form that the chosen strategy reads."""
        choice = self.choice or choose(hops, state[GENE].device, self.max_bytes)
        # Those hops that mutants see are not known here, and `late` reads what `delta` does.
        way = Shared() if choice.strategy == "shared" else Delta()
        return way.wild_type(hops, state)

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the mutants by the chosen strategy."""
        return self._chosen(hops).mutants(hops, wild_type, deleted, readout, vectors=vectors)

    def _chosen(self, hops: Sequence[Hop]) -> Propagation:
        choice = self.choice or choose(hops, place_of(hops)[0], self.max_bytes)
        if choice.strategy == "delta":
            return Delta(max_bytes=self.max_bytes)
        return Late() if choice.strategy == "late" else Shared()


STRATEGIES: Mapping[str, Callable[..., Propagation]] = MappingProxyType(
    {
        "shared": Shared,
        "delta": Delta,
        "late": Late,
        "auto": Auto,
        "dense": Dense,
        "subgraph": Subgraph,
        "edge_mask": EdgeMask,
        "stored_edges": StoredEdges,
        "stored_masks": StoredMasks,
        "device_mask": DeviceMask,
    }
)
"""What makes each strategy, by its name."""


def strategy(name: str, **options: Any) -> Propagation:
    """Return the strategy of a name, one of `STRATEGIES`, with its options such as ``tile``."""
    if name not in STRATEGIES:
        raise InputError(
            f"unknown propagation '{name}'{did_you_mean(name, STRATEGIES)}; "
            f"expected one of {', '.join(STRATEGIES)}",
            code="unknown-propagation",
        )
    try:
        return STRATEGIES[name](**options)
    except TypeError as error:
        raise InputError(
            f"the propagation '{name}' does not take these options: {error}", code="unknown-option"
        ) from error
