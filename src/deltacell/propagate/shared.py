"""The strategy `shared`: all mutants on the wild type's own matrices, deleted rows set to zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from deltacell.errors import InputError
from deltacell.propagate.hop import (
    ALL,
    GENE,
    Aggregate,
    Hop,
    Message,
    Readout,
    State,
    pool_difference,
    wild_pool,
)
from deltacell.propagate.product import SparseMatrix, product
from deltacell.propagate.protocol import Deleted, DeletedNodes, Mutants, WildType
from deltacell.propagate.workers import Pieces, in_graphs, one_core

NEAR_NUMBERS = 2**19
"""Vectors of so many numbers stay in a core's cache while a sparse matrix is gone through."""

CPU_ROWS_AT_A_TIME = 2208
"""So many rows of 64 numbers, and what is computed from them, stay in a core's cache."""


def check_at_least(**given: tuple[int | None, int]) -> None:
    """Raise for an option that is below its least value; each is given as (value, least)."""
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise InputError(
                f"{name} is {value}; expected at least {least}", code="out-of-range", option=name
            )


def rows_at_a_time(given: int | None, device: torch.device) -> int | None:
    """Return how many rows go through a row-wise function together; None is all, 0 asks for it."""
    if given is None:
        return CPU_ROWS_AT_A_TIME if device.type == "cpu" else None
    return given or None


@dataclass(frozen=True)
class Shared:
    """One sparse product per relation and tile of the batch, with deleted rows zero.

    Deleting a set of genes removes exactly the edges that touch them. With K the diagonal 0/1
    matrix of a mutant's living nodes, its sum over neighbours is ``K A K X``: zero the deleted rows
    of X, multiply by the wild type's A, zero the deleted rows of what comes out. A mean divides by
    ``A K 1``. There are no edges and no masks per mutant.

    Parameters
    ----------
    tile
        How many mutants go through one product. Where not given, on a CPU as many as stay in its
        cache, 1 for a cell of yeast's size; elsewhere the whole batch.
    rows_at_a_time
        How many rows go through a row-wise function together, see `row_wise`. Where not given,
        2,208 on a CPU, and elsewhere all at once; 0 is all at once anywhere, kept for the backward.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None

    def __post_init__(self) -> None:
        check_at_least(tile=(self.tile, 1), rows_at_a_time=(self.rows_at_a_time, 0))

    name = "shared"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: there is nothing more to find out."""
        return deleted

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, as a mutant that has lost nothing."""
        tile = _Tile(1, {})
        states = [{kind: x.unsqueeze(1) for kind, x in state.items()}]
        for hop in hops:
            states.append(self._after(hop, states[-1], tile))
        return WildType(tuple({kind: x.squeeze(1) for kind, x in s.items()} for s in states))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the mutants tile by tile; on a GPU the batch is one tile."""
        genes = wild_type.last[GENE]
        pool = wild_pool(readout.terms(genes, ALL))
        near = len(deleted) if genes.device.type != "cpu" else NEAR_NUMBERS // genes.numel()
        width = self.tile or max(1, near)
        z, per_gene = [genes.new_zeros(0, genes.shape[1])], [genes.new_zeros(0, *genes.shape)]
        for begin in range(0, len(deleted), width):
            end = min(begin + width, len(deleted))
            tile = _Tile(end - begin, {k: d.tile(begin, end) for k, d in deleted.nodes.items()})
            state: State = {
                kind: tile.zeroed(kind, x.unsqueeze(1).expand(-1, tile.size, -1))
                for kind, x in wild_type.first.items()
            }
            for hop in hops:
                state = self._after(hop, state, tile)
            terms = readout.terms(state[GENE], ALL)
            z.append(pool_difference(pool, terms, ~tile.dead(GENE, len(genes), genes.device)))
            if vectors:
                per_gene.append(state[GENE].transpose(0, 1))
        return Mutants(torch.cat(z), pool.pooled, torch.cat(per_gene) if vectors else None)

    def _after(self, hop: Hop, state: State, tile: _Tile) -> dict[str, torch.Tensor]:
        with hop.around():
            old = state[hop.target]
            received = [product(a.matrix, state[a.source]) for a in hop.aggregates]
            received = [
                x * tile.scale(a, old) if a.mean else x
                for a, x in zip(hop.aggregates, received, strict=True)
            ]
            at_a_time = rows_at_a_time(self.rows_at_a_time, old.device)
            if at_a_time is None:
                new = hop.update(old, torch.stack(received), ALL).to(old.dtype)
            else:
                pieces = Pieces(max(1, at_a_time // tile.size))
                new = hop.apply(ALL, old, received, pieces)
            return {**state, hop.target: tile.zeroed(hop.target, new)}


class _Tile:
    """Some mutants that are propagated together, with what each has lost."""

    def __init__(self, size: int, deleted: Mapping[str, DeletedNodes]) -> None:
        self.size = size
        # Known on the host; kinds of which nothing is lost here need no work on the device.
        self.deleted = {kind: d for kind, d in deleted.items() if d.starts[-1]}
        self._scales: dict[SparseMatrix, torch.Tensor] = {}

    def dead(self, kind: str, n: int, device: torch.device) -> torch.Tensor:
        """Return which nodes are deleted in which mutant, bool [n, t]."""
        dead = torch.zeros(n, self.size, dtype=torch.bool, device=device)
        if kind in self.deleted:
            dead[self.deleted[kind].nodes, self.deleted[kind].owner] = True
        return dead

    def zeroed(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, t, hidden] with the rows of deleted nodes zero."""
        if kind not in self.deleted:
            return x
        return x.masked_fill(self.dead(kind, len(x), x.device).unsqueeze(2), 0)

    def scale(self, a: Aggregate, like: torch.Tensor) -> torch.Tensor:
        """Return one over the number of living sources, [n_target, t, 1]."""
        if a.matrix not in self._scales:
            dtype = torch.promote_types(like.dtype, torch.float32)
            counts = a.matrix.row_counts(device=like.device, dtype=dtype)
            dead = self.dead(a.source, a.matrix.shape[1], like.device)
            counts = counts - product(a.pattern, dead.to(dtype))
            self._scales[a.matrix] = counts.clamp(min=1).reciprocal().unsqueeze(2)
        return self._scales[a.matrix]


def wild_type_in_parts(hops: Sequence[Hop], state: State, pieces: Pieces) -> WildType:
    """Propagate the wild type and keep the sums and messages that mutants are differences from.

    The aggregates of a hop are shared out to threads.
    """
    states, sums, messages = [state], [], []
    for hop in hops:
        old, made = states[-1], None
        x, sources = old[hop.target], [old[a.source] for a in hop.aggregates]
        with hop.around():
            if hop.messages is None:
                heard = tuple(map(product, (a.matrix for a in hop.aggregates), sources))
                received = [_scaled(a, h) for a, h in zip(hop.aggregates, heard, strict=True)]
                new = hop.apply(ALL, x, received, pieces)
            else:
                heard, made = _messages(hop, hop.messages, [x, *sources], pieces)
                with one_core(pieces.workers):
                    # One after the other, as in mutants, so that rounding is the same.
                    new = sum(made, x if hop.residual else torch.zeros_like(x))
        states.append({**old, hop.target: new})
        sums.append(heard)
        messages.append(made or ())
    return WildType(tuple(states), tuple(sums), tuple(messages))


def _messages(
    hop: Hop, messages: Sequence[Message], given: Sequence[torch.Tensor], pieces: Pieces
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return what is received over each aggregate, and the messages."""

    def run(k: int, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, *sources = given
        heard = product(hop.aggregates[k].matrix, sources[k])
        received = _scaled(hop.aggregates[k], heard)
        return heard, messages[k].apply(ALL, x, received, Pieces(pieces.at_a_time))

    parameters = [p for message in messages for p in message.parameters]
    found = in_graphs(run, len(messages), given, parameters, pieces.workers)
    heard, made = zip(*found, strict=True)
    return heard, made


def _scaled(a: Aggregate, sums: torch.Tensor) -> torch.Tensor:
    return sums * a.scale(sums) if a.mean else sums
