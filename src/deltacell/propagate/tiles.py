"""Tiles: mutants of a batch that are propagated together, and the memory that they take.

The vectors of a tile of t mutants are one tensor [n * t, hidden], node by node: the *place* of a
node in a mutant is ``node * t + mutant``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from deltacell.base.arrays import Ints, distinct
from deltacell.base.errors import InputError
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.hop import GENE, Aggregate, HopShape, sizes_of
from deltacell.propagate.parallel.chunks import rows_per_call
from deltacell.propagate.parallel.threads import workers_for
from deltacell.propagate.product import SparseMatrix

NEAR_NUMBERS = 2**19  # the numbers that one sparse product reads and that fit into a core's cache
KEPT_BYTES = 2**30  # kept for the backward on a CPU without a bound; the rest is recomputed


@dataclass(frozen=True, eq=False)
class Places:
    """Some nodes of one kind in some mutants of a tile."""

    places: Tensor  # node * t + mutant, ascending, int64 [m]
    nodes: Tensor  # int64 [m]

    @classmethod
    def of(cls, places: Ints, t: int) -> Places:
        """Return the places with their nodes, in a tile of t mutants."""
        positions = torch.from_numpy(places)
        return cls(positions, positions if t == 1 else torch.from_numpy(places // t))


@dataclass(frozen=True, eq=False)
class DeletedSources:
    """The places that receive from fewer sources than in the wild type, and how many fewer."""

    places: Tensor  # int64 [m]
    n_deleted: Tensor  # int64 [m]


@dataclass(frozen=True, eq=False)
class Tile:
    """Mutants that are propagated together, and what they lack."""

    size: int  # t, the number of mutants
    deleted: Mapping[str, Tensor]  # the places of deleted nodes, by kind
    deleted_sources: Mapping[SparseMatrix, DeletedSources]  # of the matrices of means

    @classmethod
    def of(cls, shapes: Sequence[HopShape], lost: LostPlaces) -> Tile:
        """Return the tile of mutants that lose the nodes at some places."""
        by_kind = {
            kind: torch.from_numpy(places) for kind, places in lost.by_kind.items() if len(places)
        }
        means = {
            aggregate.matrix: aggregate
            for aggregate in chain.from_iterable(shape.aggregates for shape in shapes)
            if aggregate.mean and len(lost.by_kind[aggregate.source])
        }
        deleted_sources = {
            matrix: _deleted_sources(aggregate, lost) for matrix, aggregate in means.items()
        }
        return cls(lost.size, by_kind, deleted_sources)


@dataclass(frozen=True, eq=False)
class LostPlaces:
    """The places of the nodes that a tile of mutants loses, ascending, by kind, on the host."""

    size: int  # t, the number of mutants
    by_kind: Mapping[str, Ints]  # all kinds of the hops; some may be empty


def tiles_of(shapes: Sequence[HopShape], deleted: Deleted, width: int) -> Iterator[LostPlaces]:
    """Yield what each tile of `width` mutants loses; the last tile may have fewer mutants."""
    nodes = {
        kind: DeletedNodes(lost.nodes.cpu(), lost.owner.cpu())
        for kind, lost in deleted.nodes.items()
    }
    kinds = list(sizes_of(shapes))
    for begin in range(0, len(deleted), width):
        size = min(width, len(deleted) - begin)
        yield LostPlaces(size, {kind: _lost_places(nodes.get(kind), begin, size) for kind in kinds})


def _lost_places(deleted: DeletedNodes | None, begin: int, size: int) -> Ints:
    """Return the places of one kind in the tile that begins with mutant `begin`."""
    if deleted is None:
        return np.zeros(0, dtype=np.int64)
    owner = deleted.owner.numpy()
    of_tile = slice(*np.searchsorted(owner, (begin, begin + size)))
    return np.sort(deleted.nodes.numpy()[of_tile] * size + owner[of_tile] - begin)


def _deleted_sources(aggregate: Aggregate, lost: LostPlaces) -> DeletedSources:
    sources, mutants = np.divmod(lost.by_kind[aggregate.source], lost.size)
    entries = aggregate.matrix.entries_in_columns(sources)
    places, counts = distinct(entries.row * lost.size + mutants[entries.column])
    return DeletedSources(torch.from_numpy(places), torch.from_numpy(counts))


@dataclass(frozen=True)
class TileOptions:
    """How many mutants, rows and threads are used at a time.

    Attributes
    ----------
    tile
        The number of mutants per product; by default as many as fit into the cache of a CPU, and
        on other devices the whole batch.
    rows_at_a_time
        The number of rows per call of a row-wise function, see `row_wise`; 0, the default on other
        devices, is all.
    workers
        The number of threads; by default that of PyTorch.
    max_bytes
        A bound on the memory of a batch without the model: mutants are computed one at a time, and
        what does not fit is recomputed in the backward.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None
    workers: int | None = None
    max_bytes: int | None = None

    def mutants_per_tile(
        self,
        shapes: Sequence[HopShape],
        n_mutants: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> int:
        """Return the number of mutants of a tile.

        With a bound it is one on a CPU, whose threads compute several tiles at a time, and as many
        as fit on other devices.
        """
        if self.tile is not None:
            return self.tile
        if self.max_bytes is not None:
            if device.type == "cpu" or not shapes:
                return 1
            return self._most_within_bound(shapes, n_mutants, self.max_bytes, device, dtype)
        if device.type != "cpu" or not shapes:
            return max(n_mutants, 1)
        numbers = sizes_of(shapes)[GENE] * max(shape.width for shape in shapes)
        workers = self.workers or workers_for(device, max(n_mutants, 1))
        # No thread is left without mutants.
        return max(1, min(NEAR_NUMBERS // numbers, -(-n_mutants // workers)))

    def _most_within_bound(
        self,
        shapes: Sequence[HopShape],
        n_mutants: int,
        max_bytes: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> int:
        """Return the largest tile that keeps the bound; 1 if none does."""
        rows_at_once = rows_per_call(device, self.rows_at_a_time)
        sizes = range(1, max(n_mutants, 1) + 1)
        too_large = bisect_right(
            sizes,
            max_bytes,
            key=lambda size: _Memory(shapes, size, dtype, rows_at_once).least,
        )
        return max(1, too_large)

    def schedule(
        self,
        shapes: Sequence[HopShape],
        n_tiles: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> TileSchedule:
        """Return how many tiles of `size` mutants are computed at a time and kept.

        Memory is counted as if every row changed; measurements confirm the factors.
        """
        workers = min(self.workers or workers_for(device, n_tiles), n_tiles)
        if not shapes or (self.max_bytes is None and device.type != "cpu"):
            return TileSchedule(n_tiles, workers)
        memory = _Memory(shapes, size, dtype, rows_per_call(device, self.rows_at_a_time))
        if self.max_bytes is None:
            return TileSchedule(KEPT_BYTES // memory.of_tile, workers)
        if memory.least > self.max_bytes:
            raise InputError(
                f"max_bytes is {self.max_bytes:,}, but one genotype at a time needs "
                f"{memory.least:,}",
                code="max-bytes-too-small",
                least=memory.least,
            )
        # A tenth is for memory that the allocator does not return at once.
        available = self.max_bytes * 10 // 11 - memory.of_wild_type
        workers = min(workers, available // memory.of_worker)
        return TileSchedule((available - workers * memory.of_worker) // memory.of_tile, workers)


@dataclass(frozen=True)
class TileSchedule:
    """How the tiles of a batch are computed."""

    n_kept: int  # tiles whose graphs are kept for the backward; the others are computed again
    workers: int  # threads


class _Memory:
    """The bytes of a batch of tiles, if every row changes."""

    def __init__(
        self,
        shapes: Sequence[HopShape],
        t: int,
        dtype: torch.dtype,
        rows_at_once: int | None,
    ) -> None:
        sizes = sizes_of(shapes)
        width = max(shape.width for shape in shapes)
        row = width * dtype.itemsize
        rows = t * max(sizes.values())
        # A tile has the vectors after each hop, their aggregates, and the terms of the pool.
        rows_of_hops = sum((1 + len(shape.aggregates)) * sizes[shape.target] for shape in shapes)
        self.of_tile = t * (4 * sizes[GENE] + rows_of_hops) * row
        # The wild type has vectors, sums and messages.
        wild_rows = sum((1 + 2 * len(shape.aggregates)) * sizes[shape.target] for shape in shapes)
        wild_type = wild_rows * row
        self.of_wild_type = 4 * wild_type
        # Each thread needs tensors of a mutant's size, the rows of a row-wise function, and sums of
        # the wild type's gradients.
        messages = chain.from_iterable(shape.messages for shape in shapes)
        weights = [message.n_weights for message in messages]
        n_at_once = min(rows, rows_at_once or rows)
        working = 9 * rows * row + 8 * n_at_once * max(weights) * dtype.itemsize // width
        gradients = 2 * wild_type + sum(weights) * dtype.itemsize
        self.of_worker = self.of_tile + working + gradients

    @property
    def least(self) -> int:
        """The least bound that one mutant at a time keeps."""
        return -(-(self.of_wild_type + self.of_worker) * 11 // 10)
