"""The strategy `delta`: every mutant as an exact difference from the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deltacell.errors import InputError
from deltacell.propagate.batch_run import Keeping, run_batch
from deltacell.propagate.budget import Estimate, estimate, keeping_within
from deltacell.propagate.changed import Changes, Tile
from deltacell.propagate.common import in_parts
from deltacell.propagate.cost import NEAR_NUMBERS, Rates
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.given import given_by
from deltacell.propagate.hop import ALL, GENE, Hop, State
from deltacell.propagate.pool import Readout, wild_pool
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.propagate.row_wise import autocast_here
from deltacell.propagate.sizes import place_of, sizes_of, width_of
from deltacell.propagate.tile_state import Job
from deltacell.propagate.wild import WildTypeInParts, wild_type_in_parts
from deltacell.propagate.workers import workers_for

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
