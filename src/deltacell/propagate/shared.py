"""The strategy `shared`: whole products on the matrices of the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, HopShape, Message, State
from deltacell.propagate.parallel.chunks import ALL, Chunks, Rows, row_wise, rows_per_call
from deltacell.propagate.parallel.graphs import GraphWork, in_graphs
from deltacell.propagate.parallel.threads import one_core
from deltacell.propagate.pool import Terms, WildPool, pool_difference
from deltacell.propagate.product import SparseMatrix, product
from deltacell.propagate.strategy import (
    Mutants,
    Plan,
    ReadoutTerms,
    Step,
    Strategy,
    WildMessage,
    WildType,
)
from deltacell.propagate.tiles import Tile, TileOptions, tiles_of
from deltacell.propagate.transfer import TensorMap, tensors_in

TileT = TypeVar("TileT", bound=Tile)


@dataclass(frozen=True, eq=False)
class TilePlan(Plan, Generic[TileT]):
    """The tiles of a batch, and the hops that see the deletion."""

    tiles: tuple[TileT, ...]


@dataclass(frozen=True)
class TiledStrategy(TileOptions, Strategy[TilePlan[TileT]], Generic[TileT]):
    """What `shared` and `delta` have in common: tiles of mutants, computed by threads."""

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, the messages of a hop in threads."""
        chunks = Chunks.on(state[GENE].device, self.rows_at_a_time, self.workers)
        return wild_type_of(hops, state, chunks)

    def _mutants(self, plan: TilePlan[TileT], step: Step) -> Mutants:
        values = step.pool.value
        work = self._work(plan, step, Chunks(rows_per_call(values.device, self.rows_at_a_time)))
        schedule = self.schedule(
            [hop.shape for hop in step.hops],
            len(plan.tiles),
            max(tile.size for tile in plan.tiles),
            values.device,
            torch.promote_types(values.dtype, torch.float32),
        )
        results = in_graphs(work, schedule.workers, schedule.n_kept)
        return Mutants(torch.cat([z for (z,) in results]), step.pool.pooled)

    def _work(self, plan: TilePlan[TileT], step: Step, chunks: Chunks) -> TileWork[TileT]:
        raise NotImplementedError


@dataclass(frozen=True)
class Shared(TiledStrategy[Tile]):
    """One sparse product per relation and tile of the batch, with deleted rows zero.

    Deleting a set of genes removes exactly the edges that touch them. With K the diagonal 0/1
    matrix of a mutant's living nodes, its sum over neighbours is ``K A K X``: zero the deleted rows
    of X, multiply by the wild type's A, zero the deleted rows of the product. A mean divides by
    ``A K 1``. There are no edges and no masks per mutant.
    """

    name: ClassVar[str] = "shared"
    passes: ClassVar[Messages] = Messages.whole_products

    def plan(
        self,
        shapes: Sequence[HopShape],
        deleted: Deleted,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        epistasis: bool = False,
    ) -> TilePlan[Tile]:
        """Return the places of deleted nodes, tile by tile."""
        width = self.mutants_per_tile(shapes, len(deleted), device, dtype)
        tiles = tuple(Tile.of(shapes, lost) for lost in tiles_of(shapes, deleted, width))
        return TilePlan(len(deleted), tiles)

    def _work(self, plan: TilePlan[Tile], step: Step, chunks: Chunks) -> TileWork[Tile]:
        return TileWork(plan, step, chunks)


def wild_type_of(hops: Sequence[Hop], state: State, chunks: Chunks) -> WildType:
    """Propagate the wild type: the messages of a hop in threads, with all that strategies read."""
    states = [state]
    messages = []
    for hop in hops:
        with hop.around(), one_core(chunks.workers):
            old = states[-1]
            work = _MessagesOfHop(hop, old, Chunks(chunks.n_rows))
            of_hop = [
                WildMessage(tuple(sums), message)
                for *sums, message in in_graphs(work, chunks.workers)
            ]
            new = hop.sum_of(old[hop.target], [result.message for result in of_hop])
            states.append({**old, hop.target: new})
        messages.append(tuple(of_hop))
    return WildType(tuple(states), tuple(messages))


class _MessagesOfHop(GraphWork):
    """The messages of a hop in the wild type, one to a piece."""

    def __init__(self, hop: Hop, state: State, chunks: Chunks) -> None:
        self._messages = hop.messages
        self._chunks = chunks
        self.parameters = hop.parameters
        self.inputs = [_inputs_of(message, state, hop.target) for message in hop.messages]

    def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the sums over the neighbours for each aggregate, and the message."""
        message = self._messages[piece]
        vectors, *sources = inputs
        sums = [product(a.matrix, x) for a, x in zip(message.aggregates, sources, strict=True)]
        received = [a.scaled(total) for a, total in zip(message.aggregates, sums, strict=True)]
        return *sums, message.at_rows(ALL, vectors, received, self._chunks)


def _inputs_of(message: Message, state: State, target: str) -> list[Tensor]:
    """Return the vectors of the target, and those of the sources of each aggregate."""
    sources = [state[aggregate.source] for aggregate in message.aggregates]
    return [state[target], *sources]


class TileWork(GraphWork, Generic[TileT]):
    """The mutants of a batch, a tile to a piece; the result is z [t, hidden]."""

    def __init__(self, plan: TilePlan[TileT], step: Step, chunks: Chunks) -> None:
        self._tiles = plan.tiles
        self._step = step
        self._chunks = chunks
        self._tensors = tensors_in((step.wild_type, step.pool))
        self.inputs = [self._tensors] * len(plan.tiles)
        self.parameters = step.parameters

    def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the z of a tile."""
        return (self._mutants_of(self._tiles[piece], self._step_of(inputs)).z(),)

    def _mutants_of(self, tile: TileT, step: Step) -> TileMutants[TileT]:
        return TileMutants(tile, step, self._chunks)

    def _step_of(self, inputs: Sequence[Tensor]) -> Step:
        """Return the step with these tensors in place of its own."""
        places = {id(tensor): i for i, tensor in enumerate(self._tensors)}
        replaced = TensorMap(lambda tensor: inputs[places[id(tensor)]])
        wild_type: WildType = replaced(self._step.wild_type)
        pool: WildPool = replaced(self._step.pool)
        return Step(self._step.hops, wild_type, self._step.readout, pool)


class TileMutants(Generic[TileT]):
    """The propagation of a tile of t mutants; vectors are [n * t, hidden], node by node."""

    def __init__(self, tile: TileT, step: Step, chunks: Chunks) -> None:
        self.tile = tile
        self.step = step
        self.chunks = chunks
        self.t = tile.size
        self.wild_type = step.wild_type
        self.state = {
            kind: self._living(kind, self._of_each_mutant(vectors))
            for kind, vectors in self.wild_type.states[0].items()
        }
        self._scales: dict[SparseMatrix, Tensor] = {}

    def z(self) -> Tensor:
        """Propagate the mutants over all hops and read them out, [t, hidden]."""
        for number, hop in enumerate(self.step.hops):
            with hop.around():
                vectors = self._vectors_after(number, hop)
                self.state[hop.target] = self._living(hop.target, vectors)
        return self._read_out(self.state[GENE])

    def _vectors_after(self, number: int, hop: Hop) -> Tensor:
        """Return the new vectors of the target of a hop; those of deleted nodes are not read."""
        old = self.state[hop.target]
        new = old.clone() if hop.shape.residual else torch.zeros_like(old)
        for message in hop.messages:
            new = new.add_(self._whole_message(message, old))
        return new

    def _whole_message(self, message: Message, vectors: Tensor) -> Tensor:
        """Return a message to all nodes of all mutants."""
        received = [self._whole_aggregate(aggregate) for aggregate in message.aggregates]
        return message.at_rows(self._all_nodes(len(vectors)), vectors, received, self.chunks)

    def _whole_aggregate(self, aggregate: Aggregate) -> Tensor:
        """Return an aggregate of all nodes of all mutants, by one product with the matrix."""
        sums = self._whole_sums(aggregate)
        return sums * self._scale(aggregate) if aggregate.mean else sums

    def _whole_sums(self, aggregate: Aggregate) -> Tensor:
        vectors = self.state[aggregate.source]
        width = vectors.shape[1]
        return product(aggregate.matrix, vectors.view(-1, self.t, width)).view(-1, width)

    def _scale(self, aggregate: Aggregate) -> Tensor:
        """Return one over the number of living sources of each place, [n * t, 1]."""
        matrix = aggregate.matrix
        if matrix not in self._scales:
            counts = self._of_each_mutant(aggregate.counts(self.state[aggregate.source]))
            deleted = self.tile.deleted_sources.get(matrix)
            if deleted is not None:
                fewer = deleted.n_deleted.to(counts.dtype).unsqueeze(1)
                counts = counts.index_add(0, deleted.places, fewer, alpha=-1)
            self._scales[matrix] = counts.clamp(min=1).reciprocal()
        return self._scales[matrix]

    def _read_out(self, genes: Tensor) -> Tensor:
        """Return z from the vectors of all genes."""
        gate, value = self._terms(self._all_nodes(len(genes)), genes)
        living = torch.ones_like(gate, dtype=torch.bool)
        if GENE in self.tile.deleted:
            living = living.index_fill(0, self.tile.deleted[GENE], False)
        terms = Terms(gate.view(-1, self.t), value.view(-1, self.t, value.shape[1]))
        return pool_difference(self.step.pool, terms, living.view(-1, self.t))

    def _terms(self, rows: Rows, vectors: Tensor) -> tuple[Tensor, ...]:
        return row_wise(ReadoutTerms(self.step.readout), rows, [vectors], self.chunks)

    def _of_each_mutant(self, x: Tensor) -> Tensor:
        """Repeat the wild type's rows for each mutant, [n * t, width]."""
        return x.unsqueeze(1).expand(-1, self.t, -1).reshape(-1, x.shape[1])

    def _living(self, kind: str, vectors: Tensor) -> Tensor:
        """Return the vectors with those of deleted nodes zero."""
        if kind not in self.tile.deleted:
            return vectors
        return vectors.index_fill(0, self.tile.deleted[kind], 0)

    def _all_nodes(self, n_places: int) -> Rows:
        if self.t == 1:
            return ALL
        return torch.arange(n_places, device=self.state[GENE].device) // self.t
