"""The strategy `shared`: all mutants on the wild type's own matrices, deleted rows set to zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from deltacell.errors import InputError
from deltacell.propagate.aggregate import Scales, aggregate
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, State
from deltacell.propagate.pool import Readout, Terms, pool_difference, wild_pool
from deltacell.propagate.product import product
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.propagate.row_wise import row_wise

CPU_TILE_NUMBERS = 2**19
"""The vectors of a tile that stay in a CPU's cache, in numbers: those of one mutant of yeast."""

CPU_ROWS_AT_A_TIME = 1024


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
        How many mutants go through one product. Where not given, on a CPU as many as have
        `CPU_TILE_NUMBERS` numbers, 1 for a cell of yeast's size, because their vectors stay in its
        cache; elsewhere the whole batch.
    rows_at_a_time
        See `row_wise`. Where not given, 1,024 on a CPU, and elsewhere all at once; 0 is all at
        once anywhere.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None

    def __post_init__(self) -> None:
        if self.tile is not None and self.tile < 1:
            raise InputError(f"tile is {self.tile}; expected 1 or more")
        if self.rows_at_a_time is not None and self.rows_at_a_time < 0:
            raise InputError(f"rows_at_a_time is {self.rows_at_a_time}; expected 0 or more")

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "shared"

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
        differences, per_gene = [], []
        width = self.tile or _width(genes, len(deleted))
        for begin in range(0, len(deleted), width):
            end = min(begin + width, len(deleted))
            tile = _Tile(end - begin, {k: d.tile(begin, end) for k, d in deleted.nodes.items()})
            state = {kind: tile.spread(kind, x) for kind, x in wild_type.first.items()}
            for hop in hops:
                state = self._after(hop, state, tile)
            terms = readout.terms(state[GENE], ALL)
            differences.append(pool_difference(pool, terms, tile.living(GENE, terms)))
            if vectors:
                per_gene.append(state[GENE].transpose(0, 1))
        return Mutants(
            torch.cat(differences) if differences else genes.new_zeros(0, genes.shape[1]),
            pool.pooled,
            torch.cat([genes.new_zeros(0, *genes.shape), *per_gene]) if vectors else None,
        )

    def _after(self, hop: Hop, state: State, tile: _Tile) -> dict[str, torch.Tensor]:
        with hop.around():
            old = state[hop.target]
            received = aggregate(hop.aggregates, state, tile.scales(hop.aggregates, old))
            new = row_wise(hop, old, received, self._rows(old.device))
            return {**state, hop.target: tile.zeroed(hop.target, new)}

    def _rows(self, device: torch.device) -> int | None:
        if self.rows_at_a_time is not None:
            return self.rows_at_a_time or None
        return CPU_ROWS_AT_A_TIME if device.type == "cpu" else None


def _width(genes: torch.Tensor, batch: int) -> int:
    if genes.device.type != "cpu":
        return max(batch, 1)
    return max(1, CPU_TILE_NUMBERS // max(genes.numel(), 1))


class _Tile:
    """Some mutants that are propagated together, with what each has lost."""

    def __init__(self, size: int, deleted: dict[str, DeletedNodes]) -> None:
        self.size = size
        # Known on the host; kinds of which nothing is lost here need no work on the device.
        self.deleted = {kind: d for kind, d in deleted.items() if d.starts[-1]}
        self._scales: dict[int, torch.Tensor] = {}

    def spread(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return the wild type's vectors once a mutant, [n, t, hidden], without the deleted."""
        return self.zeroed(kind, x.unsqueeze(1).expand(-1, self.size, -1).contiguous())

    def zeroed(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, t, hidden] with the rows of deleted nodes zero."""
        if kind not in self.deleted:
            return x
        lost = self.deleted[kind]
        return cast(torch.Tensor, _Zeroed.apply(x, lost.nodes, lost.owner))  # type: ignore[no-untyped-call]

    def living(self, kind: str, terms: Terms) -> torch.Tensor:
        """Return which nodes live in which mutant, bool [n, t]."""
        living = torch.ones_like(terms.gate, dtype=torch.bool)
        if kind in self.deleted:
            living[self.deleted[kind].nodes, self.deleted[kind].owner] = False
        return living

    def scales(self, aggregates: Sequence[Aggregate], like: torch.Tensor) -> Scales:
        """Return one over the number of living sources, [n_target, t], for those that are means."""
        return tuple(self._scale(a, like) if a.mean else None for a in aggregates)

    def _scale(self, a: Aggregate, like: torch.Tensor) -> torch.Tensor:
        # The same in every layer.
        if id(a.matrix) not in self._scales:
            dtype = torch.promote_types(like.dtype, torch.float32)
            counts = a.matrix.row_counts(device=like.device, dtype=dtype)
            if a.source in self.deleted:
                lost = self.deleted[a.source]
                dead = like.new_zeros(a.matrix.shape[1], self.size, dtype=dtype)
                dead[lost.nodes, lost.owner] = 1
                counts = counts - product(a.pattern, dead)
            scale = counts.clamp(min=1).reciprocal()
            self._scales[id(a.matrix)] = scale.expand(-1, self.size)
        return self._scales[id(a.matrix)]


class _Zeroed(torch.autograd.Function):
    """A copy of x [n, t, hidden] with some rows zero; its own transpose."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, nodes: torch.Tensor, owner: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(nodes, owner)
        copy = x.clone()
        copy[nodes, owner] = 0
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, None, None]:
        return _Zeroed.apply(gradient, *ctx.saved_tensors), None, None  # type: ignore[no-untyped-call]
