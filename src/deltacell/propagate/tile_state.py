"""A tile of mutants between hops: its vectors, and what its nodes receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from deltacell.propagate.changed import Tile
from deltacell.propagate.common import InParts
from deltacell.propagate.given import After, First, Given, PoolPart, SumsOf
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop
from deltacell.propagate.places import Piece, Places, pieces
from deltacell.propagate.pool import (
    Readout,
    WildPool,
    changed_pool_difference,
    pool_difference,
)
from deltacell.propagate.product import SparseMatrix, multiply


@dataclass(frozen=True, eq=False)
class Job:
    """What the tiles of a batch have in common.

    Parameters
    ----------
    hops
        Message passing.
    parts
        The matrices of each hop's aggregates, in parts.
    readout
        What is pooled.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    autocast
        Makes the context that row-wise functions are called in.
    """

    hops: Sequence[Hop]
    parts: Sequence[tuple[InParts, ...]]
    readout: Readout
    rows_at_a_time: int | None
    autocast: Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, eq=False)
class Heard:
    """Sums over an aggregate where they are needed.

    Parameters
    ----------
    sums
        One row a place that is computed, or of all places.
    scale
        What makes means of sums, [n * t, 1]; None is 1.
    """

    sums: torch.Tensor
    scale: torch.Tensor | None

    def of(self, piece: Piece) -> torch.Tensor:
        """Return what is received at some places."""
        sums = self.sums[piece.part]
        return sums if self.scale is None else sums * piece.of(self.scale)


class TileState:
    """A tile of mutants and its vectors before each hop.

    Parameters
    ----------
    job
        What the tiles have in common.
    tile
        The mutants.
    given
        What they are computed from, without gradients.
    """

    def __init__(self, job: Job, tile: Tile, given: Given) -> None:
        self.job, self.tile, self.given, self.t = job, tile, given, tile.size
        self.changed: dict[int, torch.Tensor] = {}
        """After each hop, the new vectors where they are not the wild type's; all in full."""
        self._vectors: dict[First | After, torch.Tensor] = {}
        self._products: dict[tuple[First | After, SparseMatrix], torch.Tensor] = {}
        self._scales: dict[SparseMatrix, torch.Tensor] = {}

    def version(self, kind: str, h: int) -> First | After:
        """Return the name of the wild type's vectors before a hop."""
        for g in reversed(range(h)):
            if self.job.hops[g].target == kind:
                return After(g)
        return First(kind)

    def vectors(self, kind: str, h: int) -> torch.Tensor:
        """Return the mutants' vectors before a hop, [n * t, hidden], 0 where deleted."""
        version = self.version(kind, h)
        if version not in self._vectors:
            places = self.tile.hops[version.hop].changed if isinstance(version, After) else None
            if isinstance(version, After) and places is None:
                self._vectors[version] = self.changed[version.hop]
            else:
                x = self.spread(self.given[version])
                if isinstance(version, After) and places is not None:
                    x.index_copy_(0, places.at, self.changed[version.hop])
                self._vectors[version] = self.without_deleted(kind, x)
        return self._vectors[version]

    def remember(self, h: int, new: torch.Tensor) -> None:
        """Take the vectors after a hop, [n * t, hidden]."""
        places = self.tile.hops[h].changed
        self.changed[h] = new if places is None else new.index_select(0, places.at)
        self._vectors.pop(self.version(self.job.hops[h].target, h), None)
        self._vectors[After(h)] = new
        self._products.clear()

    def forget(self) -> None:
        """Drop what can be made again from `changed`."""
        self._vectors.clear()
        self._products.clear()

    def heard(self, h: int, k: int) -> Heard:
        """Return the sums over an aggregate of a hop, where the tile needs them."""
        a, received = self.job.hops[h].aggregates[k], self.tile.hops[h].received[k]
        x = self.vectors(a.source, h)
        scale = self.scale(a, x)
        if received.difference is not None:
            assert received.computed is not None
            sums = self.given[SumsOf(h)][k].index_select(0, received.computed.nodes)
            sums += received.difference.by_target.sums(self._difference(h, a.source, x))
            return Heard(sums, scale)
        own, *common = self.job.parts[h][k].of(a.matrix)
        sums = self.multiply(own, x)
        for part in common:
            key = (self.version(a.source, h), part)
            if key not in self._products:
                self._products[key] = self.multiply(part, x)
            sums += self._products[key]
        if received.computed is not None:
            sums = sums.index_select(0, received.computed.at)
        return Heard(sums, scale)

    def read(self, genes: torch.Tensor, pool: WildPool) -> torch.Tensor:
        """Return z [t, hidden] from the genes' vectors after all hops, [n * t, hidden]."""
        readout, read = self.job.readout, self.tile.read
        if read is None:
            terms = readout.terms(genes.view(-1, self.t, genes.shape[1]), ALL)
            living = torch.ones_like(terms.gate, dtype=torch.bool)
            if GENE in self.tile.deleted:
                living.view(-1).index_fill_(0, self.tile.deleted[GENE].at, False)
            return pool_difference(pool, terms, living)
        terms = readout.terms(genes.index_select(0, read.places.at), read.places.nodes)
        return changed_pool_difference(
            pool, terms, read.living, read.places.nodes, read.owner, self.t
        )

    def pool(self) -> WildPool:
        """Return the pooled wild type."""
        return WildPool(*(self.given[PoolPart(part)] for part in WildPool._fields))

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of the wild type's rows for each mutant, [n * t, width]."""
        if self.t == 1:
            return x.clone()
        return x.unsqueeze(1).repeat(1, self.t, 1).view(-1, x.shape[1])

    def over_mutants(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over mutants, [n, width]."""
        return x if self.t == 1 else x.view(-1, self.t, x.shape[1]).sum(1)

    def without_deleted(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Set the rows of deleted nodes to 0 and return x."""
        if kind in self.tile.deleted:
            x.index_fill_(0, self.tile.deleted[kind].at, 0)
        return x

    def pieces(self, places: Places | None, x: torch.Tensor) -> Iterator[Piece]:
        """Go through places of x, or through all, a few at a time."""
        return pieces(places, len(x), self.t, self.job.rows_at_a_time, x.device)

    def multiply(self, matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
        """Return a matrix times the rows of each mutant, [n_rows * t, width]."""
        width = x.shape[1]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return multiply(matrix, x.reshape(-1, self.t * width)).view(-1, width)

    def scale(self, a: Aggregate, like: torch.Tensor) -> torch.Tensor | None:
        """Return one over the number of living sources of each place, for a mean."""
        if not a.mean:
            return None
        if a.matrix not in self._scales:
            dtype = torch.promote_types(like.dtype, torch.float32)
            counts = self.spread(a.matrix.row_counts(device=like.device, dtype=dtype))
            if a.matrix in self.tile.silent:
                places, fewer = self.tile.silent[a.matrix]
                counts.index_add_(0, places.at, fewer.to(dtype).unsqueeze(1), alpha=-1)
            self._scales[a.matrix] = counts.clamp_(min=1).reciprocal_()
        return self._scales[a.matrix]

    def _difference(self, h: int, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return how the changed and deleted sources differ from the wild type."""
        places = self.tile.hops[h].sources[kind]
        assert places is not None
        wild = self.given[self.version(kind, h)].index_select(0, places.nodes)
        difference = x.index_select(0, places.at) - wild
        return difference.to(torch.promote_types(x.dtype, torch.float32))
