"""Gene sets in numbered blocks that share genes, and sets with scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb
from typing import NamedTuple

import numpy as np

from deltacell.base.arrays import AnyArray, Floats, Ints
from deltacell.models.scoring import Block


class Scored(NamedTuple):
    """Gene sets with their scores."""

    sets: Ints  # [m, size]
    score: Floats  # the mean over runs, in the unit of the screen, [m]
    spread: Floats  # the standard deviation over runs, NaN for one run, [m]

    @classmethod
    def none(cls, width: int) -> Scored:
        """Return no sets, which are padded to ``width`` genes."""
        nothing = np.zeros(0, dtype=np.float32)
        return cls(np.zeros((0, width), dtype=np.int64), nothing, nothing)

    @classmethod
    def join(cls, pieces: Sequence[Scored]) -> Scored:
        """Return the sets of all pieces, one after the other."""
        return cls(
            np.concatenate([piece.sets for piece in pieces]),
            np.concatenate([piece.score for piece in pieces]),
            np.concatenate([piece.spread for piece in pieces]),
        )

    def take(self, rows: AnyArray | slice) -> Scored:
        """Return some rows, given by a mask, by indices or as a slice."""
        return Scored(self.sets[rows], self.score[rows], self.spread[rows])

    def padded(self, width: int) -> Scored:
        """Return the sets padded in front with -1."""
        n_padded = width - self.sets.shape[1]
        padded = np.pad(self.sets, ((0, 0), (n_padded, 0)), constant_values=-1)
        return self._replace(sets=padded)


Piece = Block | Ints  # a block, or a list of sets of one size, [m, size]


class Combinations:
    """All sets of the ``given`` genes and enough others to have ``size`` genes, in blocks."""

    def __init__(
        self,
        genes: Ints,
        size: int,
        given: Sequence[int] = (),
        *,
        sets_per_piece: int = 64**3,
    ) -> None:
        self.given = np.array(given, dtype=np.int64)
        self.free = size - len(given)
        self.sizes: tuple[int, ...] = (size,)
        self.genes: Ints = np.setdiff1d(genes, self.given)
        side = max(1, round(sets_per_piece ** (1 / self.free)))
        # Shuffled, because neighbours on a chromosome are linked and not representative of others.
        mixed = np.random.default_rng(0).permutation(self.genes)
        # One array per tile, so that a block can compare its axes by identity.
        starts = range(0, len(mixed), side)
        self._tiles = [np.sort(mixed[start : start + side]) for start in starts]
        self.n_sets = comb(len(self.genes), self.free)
        self.n_pieces = _n_multisets(len(self._tiles), self.free)

    def pieces(self, first: int, step: int) -> Iterator[Piece]:
        """Yield every ``step``-th block from number ``first`` on."""
        fixed = np.split(self.given, len(self.given)) if len(self.given) else []
        for number in range(first, self.n_pieces, step):
            yield Block((*fixed, *self._tiles_of(number)))

    def _tiles_of(self, number: int) -> Iterator[Ints]:
        """Yield the tiles of a block, in ascending order and possibly repeated."""
        tile = 0
        for rest in range(self.free - 1, -1, -1):
            n_with_tile = _n_multisets(len(self._tiles) - tile, rest)  # blocks with this tile here
            while number >= n_with_tile:
                number -= n_with_tile
                tile += 1
                n_with_tile = _n_multisets(len(self._tiles) - tile, rest)
            yield self._tiles[tile]

    def draw(self, n: int, seed: int) -> Ints:
        """Return at most ``n`` distinct random sets, [m, size]."""
        n = n if len(self.genes) >= self.free else 0
        chosen = np.random.default_rng(seed).choice(self.genes, (n, self.free))
        fixed = np.broadcast_to(self.given, (n, len(self.given)))
        sets = np.sort(np.concatenate([fixed, chosen], axis=1), axis=1)
        has_distinct_genes = (np.diff(sets, axis=1) > 0).all(axis=1)
        return np.unique(sets[has_distinct_genes], axis=0)


def _n_multisets(n_kinds: int, size: int) -> int:
    """Return in how many ways ``size`` things can be drawn from kinds that may repeat."""
    if n_kinds == 0:
        return int(size == 0)
    return comb(n_kinds + size - 1, size)


class AllPairs:
    """All pairs of genes, in pieces of a few first genes with all genes after them in ``genes``.

    A predictor can then reuse what it computes for a first gene.
    """

    sizes: tuple[int, ...] = (2,)

    def __init__(self, genes: Ints, *, sets_per_piece: int) -> None:
        self.genes = genes
        self.n_sets = comb(len(genes), 2)
        self._firsts = max(1, sets_per_piece // max(len(genes), 1))  # first genes of a piece
        self.n_pieces = len(range(0, len(genes) - 1, self._firsts))

    def pieces(self, first: int, step: int) -> Iterator[Ints]:
        """Yield every ``step``-th piece from number ``first`` on, [m, 2]."""
        n_genes = len(self.genes)
        for begin in range(first * self._firsts, n_genes - 1, step * self._firsts):
            places = np.triu_indices(self._firsts, 1, n_genes - begin)
            yield self.genes[begin + np.stack(places, axis=1)]


class Listed:
    """Given sets: for each size, from the smallest, ascending genes [m, size]."""

    def __init__(self, by_size: Sequence[Ints], *, sets_per_piece: int = 64**3) -> None:
        self._pieces: list[Ints] = []
        for sets in by_size:
            cuts = range(sets_per_piece, len(sets), sets_per_piece)
            self._pieces += np.split(sets, cuts)
        self.n_sets = sum(map(len, by_size))
        self.n_pieces = len(self._pieces)
        self.sizes = tuple(sets.shape[1] for sets in by_size)

    def pieces(self, first: int, step: int) -> Iterator[Piece]:
        """Yield every ``step``-th piece from number ``first`` on."""
        yield from self._pieces[first::step]


GeneSets = Combinations | AllPairs | Listed
