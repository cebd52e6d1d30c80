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
        nothing = np.zeros(0, dtype=np.float32)
        return cls(np.zeros((0, width), dtype=np.int64), nothing, nothing)

    @classmethod
    def join(cls, pieces: Sequence[Scored]) -> Scored:
        return cls(*map(np.concatenate, zip(*pieces, strict=True)))

    def take(self, rows: AnyArray | slice) -> Scored:
        return Scored(self.sets[rows], self.score[rows], self.spread[rows])

    def padded(self, width: int) -> Scored:
        """Return the sets padded in front with -1."""
        pad = ((0, 0), (width - self.sets.shape[1], 0))
        return self._replace(sets=np.pad(self.sets, pad, constant_values=-1))


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
        self._tiles = [np.sort(mixed[at : at + side]) for at in range(0, len(mixed), side)]
        self.n_sets = comb(len(self.genes), self.free)
        self.n_pieces = comb(len(self._tiles) + self.free - 1, self.free) if self._tiles else 0

    def pieces(self, first: int, step: int) -> Iterator[Piece]:
        """Yield every ``step``-th block from number ``first`` on."""
        fixed = np.split(self.given, len(self.given)) if len(self.given) else []
        for number in range(first, self.n_pieces, step):
            yield Block((*fixed, *self._tiles_of(number)))

    def _tiles_of(self, number: int) -> Iterator[Ints]:
        """Yield the tiles of a block, in ascending order and possibly repeated."""
        tile = 0
        for rest in range(self.free - 1, -1, -1):
            # n blocks have this tile here.
            while number >= (n := comb(len(self._tiles) - tile + rest - 1, rest)):
                number, tile = number - n, tile + 1
            yield self._tiles[tile]

    def draw(self, n: int, seed: int) -> Ints:
        """Return at most ``n`` distinct random sets, [m, size]."""
        n = n if len(self.genes) >= self.free else 0
        chosen = np.random.default_rng(seed).choice(self.genes, (n, self.free))
        fixed = np.broadcast_to(self.given, (n, len(self.given)))
        sets = np.sort(np.concatenate([fixed, chosen], axis=1), axis=1)
        return np.unique(sets[(np.diff(sets, axis=1) > 0).all(axis=1)], axis=0)


class AllPairs:
    """All pairs of genes, in pieces of a few first genes with all genes after them in ``genes``.

    A predictor can then reuse what it computes for a first gene.
    """

    sizes: tuple[int, ...] = (2,)

    def __init__(self, genes: Ints, *, sets_per_piece: int) -> None:
        self.genes, self.n_sets = genes, comb(len(genes), 2)
        self._firsts = max(1, sets_per_piece // max(len(genes), 1))  # first genes of a piece
        self.n_pieces = len(range(0, len(genes) - 1, self._firsts))

    def pieces(self, first: int, step: int) -> Iterator[Ints]:
        for begin in range(first * self._firsts, len(self.genes) - 1, step * self._firsts):
            at = np.triu_indices(self._firsts, 1, len(self.genes) - begin)
            yield self.genes[begin + np.stack(at, axis=1)]


class Listed:
    """Given sets: for each size, from the smallest, ascending genes [m, size]."""

    def __init__(self, by_size: Sequence[Ints], *, sets_per_piece: int = 64**3) -> None:
        self._pieces: list[Ints] = []
        for sets in by_size:
            self._pieces += np.split(sets, range(sets_per_piece, len(sets), sets_per_piece))
        self.n_sets, self.n_pieces = sum(map(len, by_size)), len(self._pieces)
        self.sizes = tuple(sets.shape[1] for sets in by_size)

    def pieces(self, first: int, step: int) -> Iterator[Piece]:
        yield from self._pieces[first::step]


GeneSets = Combinations | AllPairs | Listed
