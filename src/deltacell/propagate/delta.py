"""The strategy `delta`: only the rows of every mutant that differ from the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.delta_plan import (
    ChangedGenes,
    ChangedMessage,
    Costs,
    DeltaTile,
    delta_tile,
)
from deltacell.propagate.hop import Aggregate, Hop, HopShape, Message
from deltacell.propagate.parallel.chunks import Chunks
from deltacell.propagate.pool import Terms, pool_changes
from deltacell.propagate.product import SparseMatrix, product
from deltacell.propagate.shared import TiledStrategy, TileMutants, TilePlan, TileWork
from deltacell.propagate.strategy import Step, WildMessage
from deltacell.propagate.tiles import Places, tiles_of


@dataclass(frozen=True)
class Delta(TiledStrategy[DeltaTile]):
    """Compute the wild type once, and only the rows of every mutant that differ from it.

    A mutant's vectors are ``X' = X + dX`` with dX = 0 except on changed rows. The sums of a hop are
    ``A X' = A X + A dX``. In the first hop dX consists of the deleted genes, and few rows change;
    each hop adds the targets of changed rows, per relation. Once nearly all rows change, a whole
    product is used as in `Shared`. Unchanged rows are the wild type's, in value and gradient.

    Costs decide between the two ways, both of which are exact. Gathering a row costs as much as
    multiplying it by `gather_cost` columns of weights, and finding an entry of a difference on the
    host as much as multiplying `entry_cost` numbers by it.
    """

    gather_cost: float = 22.6
    entry_cost: float = 600.0
    name: ClassVar[str] = "delta"
    passes: ClassVar[Messages] = Messages.changes

    def plan(
        self,
        shapes: Sequence[HopShape],
        deleted: Deleted,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        epistasis: bool = False,
    ) -> TilePlan[DeltaTile]:
        """Return the changed rows of each hop, tile by tile."""
        costs = Costs(gather=self.gather_cost, entry=self.entry_cost)
        width = self.mutants_per_tile(shapes, len(deleted), device, dtype)
        tiles = [
            delta_tile(shapes, lost, costs, device) for lost in tiles_of(shapes, deleted, width)
        ]
        return TilePlan(len(deleted), tuple(tiles))

    def _work(
        self,
        plan: TilePlan[DeltaTile],
        step: Step,
        chunks: Chunks,
    ) -> TileWork[DeltaTile]:
        return _DeltaWork(plan, step, chunks)


class _DeltaWork(TileWork[DeltaTile]):
    def _mutants_of(self, tile: DeltaTile, step: Step) -> DeltaMutants:
        return DeltaMutants(tile, step, self._chunks)


class DeltaMutants(TileMutants[DeltaTile]):
    """The propagation of a tile whose rows differ from the wild type's in known places."""

    def __init__(self, tile: DeltaTile, step: Step, chunks: Chunks) -> None:
        super().__init__(tile, step, chunks)
        # Of the sources of the present hop, by kind.
        self._changes: dict[str, Tensor] = {}

    def _vectors_after(self, number: int, hop: Hop) -> Tensor:
        self._changes.clear()
        changed_messages = self.tile.hops[number].messages
        new, is_wild_type = self._vectors_to_change(number, hop)
        for k, (message, changed) in enumerate(zip(hop.messages, changed_messages, strict=True)):
            if changed is None:
                new = new.add_(self._whole_message(message, self.state[hop.target]))
                continue
            wild = self.wild_type.messages[number][k]
            if not is_wild_type:
                new = new.add_(self._of_each_mutant(wild.message))
            if len(changed.computed.places):
                change = self._change_of_message(number, hop, message, changed, wild)
                new = new.index_add_(0, changed.computed.places, change)
        return new

    def _vectors_to_change(self, number: int, hop: Hop) -> tuple[Tensor, bool]:
        """Return the vectors that messages are added to, and whether they are the wild type's.

        They are if every message is computed at some places only, where its change is added.
        """
        old = self.state[hop.target]
        is_wild_type = None not in self.tile.hops[number].messages
        if not is_wild_type:
            return old.clone() if hop.shape.residual else torch.zeros_like(old), False
        after = self.wild_type.states[number + 1][hop.target]
        if not hop.shape.residual:
            return self._of_each_mutant(after).clone(), True
        before = self.wild_type.states[number][hop.target]
        return old + self._of_each_mutant(after - before), True

    def _change_of_message(
        self,
        number: int,
        hop: Hop,
        message: Message,
        changed: ChangedMessage,
        wild: WildMessage,
    ) -> Tensor:
        """Return the message minus that of the wild type at the places where it is computed."""
        places = changed.computed
        received = []
        for j, aggregate in enumerate(message.aggregates):
            sums = self._sums_at(number, aggregate, places, changed.differences[j], wild.sums[j])
            if aggregate.mean:
                sums = sums * self._scale(aggregate).index_select(0, places.places)
            received.append(sums)
        vectors = self.state[hop.target].index_select(0, places.places)
        new = message.at_rows(places.nodes, vectors, received, self.chunks)
        return new - wild.message.index_select(0, places.nodes)

    def _sums_at(
        self,
        number: int,
        aggregate: Aggregate,
        places: Places,
        difference: SparseMatrix | None,
        wild_sums: Tensor,
    ) -> Tensor:
        """Return the sums of a mutant at some places, ``A X' = A X + A dX``."""
        if difference is None:
            return self._whole_sums(aggregate).index_select(0, places.places)
        of_wild_type = wild_sums.index_select(0, places.nodes)
        return of_wild_type + product(difference, self._changes_of(number, aggregate.source))

    def _changes_of(self, number: int, kind: str) -> Tensor:
        """Return dX at the changed and deleted sources of one kind."""
        if kind not in self._changes:
            places = self.tile.hops[number].sources[kind]
            assert places is not None
            wild = self.wild_type.states[number][kind].index_select(0, places.nodes)
            mutant = self.state[kind].index_select(0, places.places)
            self._changes[kind] = mutant - wild
        return self._changes[kind]

    def _read_out(self, genes: Tensor) -> Tensor:
        if self.tile.read is None:
            return super()._read_out(genes)
        return self._read_out_changed(genes, self.tile.read)

    def _read_out_changed(self, genes: Tensor, read: ChangedGenes) -> Tensor:
        """Return z from the changed genes alone, see `pool_changes`."""
        vectors = genes.index_select(0, read.genes.places)
        gate, value = self._terms(read.genes.nodes, vectors)
        # In float64, because a mutant's weights may be much larger than the wild type's.
        wild = self.step.pool.at(read.genes.nodes).double()
        numerators, changes = pool_changes(Terms(gate, value.double()), read.living, wild)
        n = numerators.new_zeros(self.t, numerators.shape[1])
        n = n.index_add(0, read.mutants, numerators)
        q = changes.new_zeros(self.t).index_add(0, read.mutants, changes)
        return (n / (1 + q).unsqueeze(1)).to(genes.dtype)
