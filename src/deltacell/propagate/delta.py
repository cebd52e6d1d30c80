"""The strategy `delta`: every mutant as an exact difference from the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from deltacell.errors import InputError
from deltacell.propagate.changed import NEAR_NUMBERS, Changes, Places, Rates, Tile
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import ALL, GENE, Hop, State, place_of, sizes_of, width_of
from deltacell.propagate.pool import Readout, wild_pool
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.propagate.shared import autocast_here
from deltacell.propagate.tile import (
    Given,
    GradientSums,
    Job,
    Kept,
    Name,
    TileBackward,
    TileForward,
    given_by,
)
from deltacell.propagate.wild import WildTypeInParts, in_parts, wild_type_in_parts
from deltacell.propagate.workers import in_workers, one_core, workers_for


@dataclass(frozen=True)
class Keeping:
    """What the forward keeps for the backward, which computes the rest again.

    Parameters
    ----------
    states
        Of how many tiles the vectors after each hop are kept.
    sums
        Of how many tiles also the sums over the aggregates.
    workers
        Threads.
    """

    states: int
    sums: int
    workers: int


def run_batch(
    job: Job, tiles: Sequence[Tile], keeping: Keeping, given: Given, *, vectors: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return z [b, hidden] of all mutants, and their genes' vectors [b, n, hidden] if wanted.

    Parameters
    ----------
    job
        What the tiles have in common.
    tiles
        The mutants.
    keeping
        What is kept for the backward.
    given
        What they are computed from.
    vectors
        Whether the genes' vectors are wanted.
    """
    run = _Run(job, tuple(tiles), keeping, tuple(given), vectors, torch.is_grad_enabled())
    z, per_gene = _Batch.apply(run, *given.values())  # type: ignore[no-untyped-call]
    return z, cast(torch.Tensor, per_gene) if vectors else None


@dataclass(frozen=True, eq=False)
class _Run:
    job: Job
    tiles: tuple[Tile, ...]
    keeping: Keeping
    names: tuple[Name, ...]
    vectors: bool
    will_go_back: bool

    def named(self, tensors: Sequence[torch.Tensor]) -> Given:
        return dict(zip(self.names, tensors, strict=True))


class _Batch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = run.named(tensors)
        kept: list[Kept | None] = [None] * len(run.tiles)

        def one(worker: int, i: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            keep = run.will_go_back and i < run.keeping.states
            tile = TileForward(run.job, run.tiles[i], given)
            z, vectors, made = tile.run(keep_sums=keep and i < run.keeping.sums)
            if keep:
                kept[i] = made
            return z, vectors if run.vectors else None

        with one_core(run.keeping.workers):
            found = in_workers(one, range(len(run.tiles)), run.keeping.workers)
        ctx.run, ctx.kept = run, kept
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        z = torch.cat([z for z, _ in found])
        if not run.vectors:
            return z, z.new_empty(0)
        return z, torch.cat([x for _, x in found if x is not None])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_z: torch.Tensor | None, by_vectors: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        run: _Run = ctx.run
        given = run.named(ctx.saved_tensors)
        wants = zip(run.names, ctx.needs_input_grad[1:], strict=True)
        wanted = {name: given[name] for name, want in wants if want}
        sums = [GradientSums(wanted) for _ in range(run.keeping.workers)]
        if not run.vectors:
            by_vectors = None

        def one(worker: int, i: int) -> None:
            tile, kept = run.tiles[i], ctx.kept[i]
            if kept is None:
                *_, kept = TileForward(run.job, tile, given).run(keep_sums=False)
            # Used up, so that memory goes down from here on; a second backward makes it again.
            ctx.kept[i] = None
            mutants = slice(tile.begin, tile.end)
            TileBackward(run.job, tile, given, kept, sums[worker]).run(
                None if by_z is None else by_z[mutants],
                None if by_vectors is None else by_vectors[mutants],
            )

        with one_core(run.keeping.workers):
            in_workers(one, range(len(run.tiles)), run.keeping.workers)
            for other in sums[1:]:
                sums[0].join(other)
        return None, *(sums[0].sums.get(n) for n in run.names)


KEPT_SUMS = 2**30
"""Bytes of sums that are kept for the backward where no bound is given."""

# Tensors of a mutant's size that are alive at once, counted in the code and checked by measuring.
_IN_A_HOP = 9
_IN_THE_READOUT = 14
_PER_NUMBER_OF_A_ROW = 8


@dataclass(frozen=True)
class Estimate:
    """Bytes that a batch takes.

    Parameters
    ----------
    wild_type
        The wild type with its parts, and its backward.
    worker
        What each thread works in, with its sums of gradients.
    again
        Of a tile whose vectors were not kept, while it is computed again.
    states
        Of each tile, if its vectors are kept for the backward.
    sums
        Of each tile, if its sums are kept too.
    """

    wild_type: int
    worker: int
    again: int
    states: tuple[int, ...]
    sums: tuple[int, ...]

    def of(self, keeping: Keeping) -> int:
        """Return the bytes of a whole batch under what is kept."""
        again = self.again if keeping.states < len(self.states) else 0
        return (
            self.wild_type
            + keeping.workers * (self.worker + again)
            + sum(self.states[: keeping.states])
            + sum(self.sums[: keeping.sums])
        )

    @property
    def least(self) -> int:
        """The bytes of one tile after the other, with nothing kept, whatever the genotypes."""
        return self.wild_type + self.worker + self.again


def estimate(hops: Sequence[Hop], tiles: Sequence[Tile], rows_at_a_time: int | None) -> Estimate:
    """Return the bytes that a batch takes forward and backward, beside the model.

    Parameters
    ----------
    hops
        Message passing.
    tiles
        The mutants, and what is different in them.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    """
    sizes = sizes_of(hops)
    width = max(width_of(hop) for hop in hops)
    item = place_of(hops)[1].itemsize
    number = width * item
    t = max((tile.size for tile in tiles), default=1)
    gene = sizes[GENE] * number
    parts = sum(2 * len(hop.aggregates) * sizes[hop.target] * number for hop in hops)
    states = sum((1 + 2) * sizes[hop.target] * number for hop in hops)
    going_back = max(3 * len(hop.aggregates) * sizes[hop.target] * number for hop in hops)
    in_a_hop = max(
        (_IN_A_HOP + (2 * len(hop.aggregates) if hop.messages is None else 0))
        * t
        * sizes[hop.target]
        * number
        for hop in hops
    )
    rows = t * max(sizes.values())
    if rows_at_a_time is not None:
        rows = min(rows, rows_at_a_time)
    row_wise = rows * max(_numbers_of_a_row(hop, width) for hop in hops) * item
    gradients = parts + states + sum(p.numel() * item for hop in hops for p in hop.parameters)
    return Estimate(
        wild_type=parts + states + going_back,
        worker=max(in_a_hop, _IN_THE_READOUT * t * gene) + row_wise + gradients,
        again=sum(t * sizes[hop.target] for hop in hops) * number,
        states=tuple(_states(hops, tile, sizes) * number for tile in tiles),
        sums=tuple(_sums(hops, tile, sizes) * number for tile in tiles),
    )


def keeping_within(estimated: Estimate, workers: int, max_bytes: int | None) -> Keeping:
    """Return what to keep for the backward; what is not kept is computed again.

    Parameters
    ----------
    estimated
        Of the batch.
    workers
        Threads; fewer are taken where memory does not reach for all.
    max_bytes
        The bound; None is none, and then sums are kept up to `KEPT_SUMS`. One that is too small
        for one tile after the other is an error.
    """
    n_tiles = len(estimated.states)
    if max_bytes is None:
        return Keeping(n_tiles, _fitting(estimated.sums, KEPT_SUMS), workers)
    if estimated.least > max_bytes:
        raise InputError(
            f"max_bytes is {max_bytes:,}, and one genotype after the other takes "
            f"{estimated.least:,}",
            fix=f"Give at least {estimated.least:,} bytes, or take a smaller model.",
        )
    while workers > 1 and estimated.of(Keeping(0, 0, workers)) > max_bytes:
        workers -= 1
    left = max_bytes - estimated.of(Keeping(0, 0, workers))
    states = _fitting(estimated.states, left)
    # Without any that is computed again, there is room for more.
    if estimated.of(Keeping(n_tiles, 0, workers)) <= max_bytes:
        states = n_tiles
    left = max_bytes - estimated.of(Keeping(states, 0, workers))
    sums = _fitting(estimated.sums[:states], left)
    return Keeping(states, sums, workers)


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many fit, one after the other."""
    n = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        n += 1
    return n


def _states(hops: Sequence[Hop], tile: Tile, sizes: dict[str, int]) -> int:
    """Return the rows that are kept of a tile's vectors."""
    return sum(
        _rows(changed.changed, sizes[hop.target] * tile.size)
        for hop, changed in zip(hops, tile.hops, strict=True)
    )


def _sums(hops: Sequence[Hop], tile: Tile, sizes: dict[str, int]) -> int:
    """Return the rows that are kept of a tile's sums."""
    return sum(
        _rows(received.computed, sizes[hop.target] * tile.size)
        for hop, changed in zip(hops, tile.hops, strict=True)
        for received in changed.received
        if received.difference is None
    )


def _rows(places: Places | None, n: int) -> int:
    return n if places is None else len(places)


def _numbers_of_a_row(hop: Hop, width: int) -> int:
    """Return about how many numbers lie between a row's old vector and its new one."""
    if hop.messages is None:
        return _PER_NUMBER_OF_A_ROW * sum(p.numel() for p in hop.parameters) // width
    return max(
        _PER_NUMBER_OF_A_ROW * sum(p.numel() for p in m.parameters) // width for m in hop.messages
    )


CPU_ROWS_AT_A_TIME = 2208
"""So many rows of 64 numbers, and what is computed from them, stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class DeletedInTiles(Deleted):
    """What a batch deletes, and what is different for it.

    Parameters
    ----------
    genotypes, nodes
        See `Deleted`.
    tiles
        Mutants that are propagated together.
    """

    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True)
class Delta:
    """The wild type once, and of every mutant only what is different.

    A mutant's vectors are ``X = X_wt + D``, and D is 0 but on changed rows. A hop's sums are
    ``A X = A X_wt + A D``: in the first hop D is the deleted genes, and a few rows change; from hop
    to hop there are more, over each relation those alone that hear from a changed one. Where that
    is nearly all, a whole product takes its place; which of the two is chosen for each relation
    and hop, forward and backward apart, by what they cost. Rows that do not change are the wild
    type's, in value and in gradient: what comes back to them is added up over the batch and goes
    through the wild type's products once.

    The row-wise functions are computed a few rows at a time, which stay in cache, and once more in
    the backward; nothing between a hop's sums and its new vectors is kept. Mutants are shared out
    to threads that need not wait for each other.

    Parameters
    ----------
    tile
        How many mutants go through one product. Where not given, on a CPU as many as stay in cache,
        1 for a cell of yeast's size; elsewhere the whole batch.
    rows_at_a_time
        How many rows go through a row-wise function together. Where not given, 2,208 on a CPU, and
        elsewhere all at once; 0 is all at once anywhere.
    workers
        Threads. Where not given, on a CPU as many as PyTorch may use; elsewhere one.
    max_bytes
        Bound on the memory of a batch, beside the model. What does not fit is computed again in the
        backward, with the same result and gradient.
    rates
        What things cost, see `rates_here`.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None
    workers: int | None = None
    max_bytes: int | None = None
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        for what, given, least in (
            ("tile", self.tile, 1),
            ("rows_at_a_time", self.rows_at_a_time, 0),
            ("workers", self.workers, 1),
            ("max_bytes", self.max_bytes, 1),
        ):
            if given is not None and given < least:
                raise InputError(f"{what} is {given}; expected {least} or more")

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "delta"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> DeletedInTiles:
        """Find out on the host what is different in each mutant."""
        host = deleted.to("cpu")
        changes = Changes(hops, self.rates)
        width = self.tile or self._width(hops, len(host))
        if self.max_bytes is not None:
            width = self._width_within(changes, host, width)
        tiles = tuple(
            changes.tile(host.nodes, begin, min(begin + width, len(host)))
            for begin in range(0, len(host), width)
        )
        return DeletedInTiles(deleted.genotypes, deleted.nodes, tiles)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildTypeInParts:
        """Propagate the wild type, and keep what lies between its vectors."""
        device = state[GENE].device
        most = max(len(hop.aggregates) for hop in hops) if hops else 1
        return wild_type_in_parts(hops, state, self._rows(device), self._workers(device, most))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate what is different in the mutants."""
        genes = wild_type.last[GENE]
        pool = wild_pool(readout.terms(genes, ALL))
        if not isinstance(deleted, DeletedInTiles):
            deleted = self.prepare(hops, deleted).to(genes.device)
        if not isinstance(wild_type, WildTypeInParts):
            wild_type = self.wild_type(hops, wild_type.first)
        if not deleted.tiles:
            none = genes.new_zeros(0, *genes.shape)
            return Mutants(none[:, 0], pool.pooled, none if vectors else None)
        device = genes.device
        keeping = self._keeping(hops, deleted.tiles)
        job = Job(
            hops,
            [in_parts(hop.aggregates) for hop in hops],
            readout,
            self._rows(device),
            autocast_here(device.type),
        )
        given = given_by(hops, wild_type, pool, readout)
        z, per_gene = run_batch(job, deleted.tiles, keeping, given, vectors=vectors)
        return Mutants(z, pool.pooled, per_gene)

    def estimate(self, hops: Sequence[Hop], deleted: Deleted) -> Estimate:
        """Return the bytes that a batch takes forward and backward, beside the model.

        Parameters
        ----------
        hops
            Message passing.
        deleted
            What `prepare` returned.
        """
        if not isinstance(deleted, DeletedInTiles):
            deleted = self.prepare(hops, deleted)
        return estimate(hops, deleted.tiles, self._rows(place_of(hops)[0]))

    def _keeping(self, hops: Sequence[Hop], tiles: Sequence[Tile]) -> Keeping:
        device = place_of(hops)[0]
        estimated = estimate(hops, tiles, self._rows(device))
        return keeping_within(estimated, self._workers(device, len(tiles)), self.max_bytes)

    def _width_within(self, changes: Changes, host: Deleted, width: int) -> int:
        """Return the width, or one that memory reaches for; raise where it reaches for none."""
        while len(host):
            tile = changes.tile(host.nodes, 0, min(width, len(host)))
            try:
                self._keeping(changes.hops, [tile])
            except InputError:
                if width == 1:
                    raise
                width = -(-width // 2)
            else:
                break
        return width

    def _width(self, hops: Sequence[Hop], batch: int) -> int:
        device = place_of(hops)[0]
        if device.type != "cpu" or not hops:
            return max(batch, 1)
        numbers = sizes_of(hops)[GENE] * max(width_of(hop) for hop in hops)
        near = max(1, NEAR_NUMBERS // max(numbers, 1))
        # Every thread is to have mutants of its own.
        return min(near, max(1, -(-batch // self._workers(device, batch))))

    def _rows(self, device: torch.device) -> int | None:
        if self.rows_at_a_time is not None:
            return self.rows_at_a_time or None
        return CPU_ROWS_AT_A_TIME if device.type == "cpu" else None

    def _workers(self, device: torch.device, items: int) -> int:
        if self.workers is not None:
            return max(1, min(self.workers, items))
        return workers_for(device, items)
