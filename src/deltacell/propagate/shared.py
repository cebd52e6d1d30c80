"""The strategy `shared`: all mutants on the wild type's own matrices, deleted rows set to zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, RowWise, State, gradients_of
from deltacell.propagate.pool import Readout, Terms, pool_difference, wild_pool
from deltacell.propagate.product import SparseMatrix, multiply, product
from deltacell.propagate.protocol import Mutants, WildType

Scales = tuple[torch.Tensor | None, ...]


def aggregate(
    aggregates: Sequence[Aggregate], state: Mapping[str, torch.Tensor], scales: Scales
) -> torch.Tensor:
    """Return what each node receives over each of k matrices, [k, n_target, t, hidden].

    ``a[k, i, b] = scales[k][i, b] * sum over j of matrix_k[i, j] x[j, b]``, in float32 or float64
    whatever the autocast. Deleted rows of x must be 0. Product by product, because the rows of one
    relation stay in cache where those of all do not, most of all in the backward.

    Parameters
    ----------
    aggregates
        The matrices and the kinds of node that they read.
    state
        x of each kind, contiguous [n_source, t, hidden].
    scales
        One [n_target, t] an aggregate, or None for 1.
    """
    sources = list(dict.fromkeys(a.source for a in aggregates))
    matrices = tuple(a.matrix for a in aggregates)
    which = tuple(sources.index(a.source) for a in aggregates)
    xs = [state[s].to(torch.promote_types(state[s].dtype, torch.float32)) for s in sources]
    return cast(torch.Tensor, _Gather.apply(matrices, scales, which, *xs))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """From sources [n_source, t, hidden] to slabs [k, n_target, t, hidden]."""

    @staticmethod
    def forward(
        ctx: Any,
        matrices: tuple[SparseMatrix, ...],
        scales: Scales,
        which: tuple[int, ...],
        *xs: torch.Tensor,
    ) -> torch.Tensor:
        ctx.matrices, ctx.scales, ctx.which = matrices, scales, which
        slabs = xs[0].new_empty(len(matrices), matrices[0].shape[0], *xs[0].shape[1:])
        for slab, matrix, scale, source in zip(slabs, matrices, scales, which, strict=True):
            _multiply(slab.flatten(1), matrix, xs[source].flatten(1), add=False)
            if scale is not None:
                slab.mul_(scale.unsqueeze(-1))
        return slabs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        transposed = tuple(m.transpose for m in ctx.matrices)
        found = _Spread.apply(transposed, ctx.scales, ctx.which, gradient)  # type: ignore[no-untyped-call]
        return None, None, None, *found


class _Spread(torch.autograd.Function):
    """The transpose of `_Gather`: from slabs to the sum over those that read each source."""

    @staticmethod
    def forward(
        ctx: Any,
        matrices: tuple[SparseMatrix, ...],
        scales: Scales,
        which: tuple[int, ...],
        slabs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.matrices, ctx.scales, ctx.which = matrices, scales, which
        found: dict[int, torch.Tensor] = {}
        for slab, matrix, scale, source in zip(slabs, matrices, scales, which, strict=True):
            scaled = slab if scale is None else slab * scale.unsqueeze(-1)
            first = source not in found
            if first:
                found[source] = slabs.new_empty(matrix.shape[0], *slabs.shape[2:])
            _multiply(found[source].flatten(1), matrix, scaled.flatten(1), add=not first)
        return tuple(found[source] for source in range(len(found)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        transposed = tuple(m.transpose for m in ctx.matrices)
        slabs = _Gather.apply(transposed, ctx.scales, ctx.which, *gradients)  # type: ignore[no-untyped-call]
        return None, None, None, slabs


def _multiply(out: torch.Tensor, matrix: SparseMatrix, x: torch.Tensor, *, add: bool) -> None:
    """Write ``matrix @ x`` to out, or add it; all [rows, width]."""
    found = multiply(matrix, x.contiguous())
    if add:
        out.add_(found)
    else:
        out.copy_(found)


def row_wise(
    hop: Hop, vectors: torch.Tensor, aggregated: torch.Tensor, rows_at_a_time: int | None
) -> torch.Tensor:
    """Return ``hop.update`` of all rows, [n, t, hidden], in the type of the old vectors.

    A few rows at a time, everything between the aggregates and the new vectors stays in cache and
    is gone when the next rows come; the backward computes it again. That takes as much time as
    reading it back from memory, and a fifth of the memory.

    Parameters
    ----------
    hop
        Its update and its parameters.
    vectors
        [n, t, hidden].
    aggregated
        [k, n, t, hidden].
    rows_at_a_time
        How many rows of ``hidden`` numbers; None for all at once, kept for the backward.
    """
    if rows_at_a_time is None:
        return hop.update(vectors, aggregated, ALL).to(vectors.dtype)
    nodes = max(1, rows_at_a_time // max(vectors.shape[1], 1))
    if torch.is_grad_enabled():
        made = _Recomputed.apply(hop.update, nodes, vectors, aggregated, *hop.parameters)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, made)
    return _in_pieces(hop.update, nodes, vectors, aggregated)


def autocast_here(device_type: str) -> Callable[[], AbstractContextManager[object]]:
    """Return what makes the autocast that is in force here and now, for another place or time."""
    # Not cached: casts made here without a gradient must not be found by those that need one.
    return partial(
        torch.autocast,
        device_type,
        torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )


class _Recomputed(torch.autograd.Function):
    """``update(vectors, aggregated, rows)``; keeps its arguments and nothing between."""

    @staticmethod
    def forward(
        ctx: Any,
        update: RowWise,
        nodes: int,
        vectors: torch.Tensor,
        aggregated: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.update, ctx.nodes = update, nodes
        ctx.autocast = autocast_here(vectors.device.type)
        ctx.save_for_backward(vectors, aggregated, *parameters)
        return _in_pieces(update, nodes, vectors, aggregated)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        vectors, aggregated, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        by_vectors = torch.zeros_like(vectors) if wanted[0] else None
        by_aggregated = torch.zeros_like(aggregated) if wanted[1] else None
        by_parameter: list[torch.Tensor | None] = [None] * len(parameters)
        with ctx.autocast():
            for rows in _pieces(len(vectors), ctx.nodes):
                with torch.enable_grad():
                    old = vectors[rows].detach().requires_grad_(wanted[0])
                    received = aggregated[:, rows].detach().requires_grad_(wanted[1])
                    new = ctx.update(old, received, rows)
                inputs = [old, received, *parameters]
                parts = gradients_of(new, inputs, gradient[rows])
                if by_vectors is not None and parts[0] is not None:
                    by_vectors[rows] = parts[0]
                if by_aggregated is not None and parts[1] is not None:
                    by_aggregated[:, rows] = parts[1]
                by_parameter = [_sum(a, b) for a, b in zip(by_parameter, parts[2:], strict=True)]
        return None, None, by_vectors, by_aggregated, *by_parameter


def _in_pieces(
    update: RowWise, nodes: int, vectors: torch.Tensor, aggregated: torch.Tensor
) -> torch.Tensor:
    new = torch.empty_like(vectors)
    with autocast_here(vectors.device.type)():
        for rows in _pieces(len(vectors), nodes):
            new[rows] = update(vectors[rows], aggregated[:, rows], rows)
    return new


def _pieces(n: int, nodes: int) -> list[slice]:
    return [slice(begin, min(begin + nodes, n)) for begin in range(0, n, nodes)]


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b


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
