"""Which gene sets are gone through, in blocks that share genes and are known by their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Protocol

import numpy as np

from deltacell.arrays import Ints


@dataclass(frozen=True, eq=False)
class Block:
    """All sets with one gene from each axis.

    Neighbouring axes that are the same array stand for sets of genes of that array: of those every
    set is there once, its genes in the order of the array. Other axes share no gene.

    Parameters
    ----------
    axes
        Gene indices, one array for each gene of a set.
    """

    axes: tuple[Ints, ...]

    def __len__(self) -> int:
        n = 1
        for axis, times in self._runs():
            n *= comb(len(axis), times)
        return n

    @property
    def size(self) -> int:
        """Number of genes of a set."""
        return len(self.axes)

    def sets(self) -> Ints:
        """Return all sets, [len, size], in the order of the axes."""
        if not len(self):
            return np.zeros((0, self.size), dtype=np.int64)
        position = np.indices([len(axis) for axis in self.axes]).reshape(self.size, -1)
        kept = np.ones(position.shape[1], dtype=bool)
        for t in range(1, self.size):
            if self.axes[t] is self.axes[t - 1]:
                kept &= position[t - 1] < position[t]
        rows = position[:, kept]
        return np.stack([axis[at] for axis, at in zip(self.axes, rows, strict=True)], axis=1)

    def _runs(self) -> list[tuple[Ints, int]]:
        """Return the distinct axes in order, with how often each stands in a row."""
        runs: list[tuple[Ints, int]] = []
        for axis in self.axes:
            if runs and runs[-1][0] is axis:
                runs[-1] = (axis, runs[-1][1] + 1)
            else:
                runs.append((axis, 1))
        return runs


Piece = Block | Ints
"""A block, or a list of sets of one size, [m, size]."""


class GeneSets(Protocol):
    """Sets in pieces; every set is in one piece, once."""

    @property
    def n_sets(self) -> int:
        """Number of sets in all."""

    @property
    def n_pieces(self) -> int:
        """Number of pieces."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many genes the sets have, ascending."""

    def pieces(self, first: int, step: int) -> Iterator[Piece]:
        """Return the piece of a number, and every so many after it."""

    def drawn(self, n: int, seed: int) -> Ints:
        """Return about so many sets, drawn with a seed; empty where that is of no use."""

    def varied(self, sets: Ints, n: int, seed: int) -> Ints:
        """Return about so many that differ from some of these, [m, size], by one gene."""


class Combinations:
    """All sets of some given genes and so many others.

    Parameters
    ----------
    genes
        Indices to choose from, each once; the given ones are not chosen again.
    size
        Genes of a set.
    given
        Indices of the genes that every set has.
    sets_a_piece
        About how many sets a block has.
    """

    def __init__(
        self, genes: Ints, size: int, given: Sequence[int] = (), *, sets_a_piece: int = 64**3
    ) -> None:
        self.given = tuple(given)
        self.free = size - len(self.given)
        self.genes: Ints = np.setdiff1d(genes, np.array(self.given, dtype=np.int64))
        if self.free < 1:
            raise ValueError(f"sets of {size} genes with {len(self.given)} given")
        self._fixed = tuple(np.array([gene], dtype=np.int64) for gene in self.given)
        side = max(1, round(sets_a_piece ** (1 / self.free)))
        # Neighbours on a chromosome are linked: a tile of them would say little of the others.
        mixed = np.random.default_rng(0).permutation(self.genes)
        # One array a tile, the same in every block: what is worked out for it can be kept.
        self._tiles = [np.sort(mixed[at : at + side]) for at in range(0, len(mixed), side)]

    @property
    def n_sets(self) -> int:
        """Number of sets in all."""
        return comb(len(self.genes), self.free)

    @property
    def n_pieces(self) -> int:
        """Number of blocks, some of which may be empty."""
        return comb(len(self._tiles) + self.free - 1, self.free) if self._tiles else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many genes the sets have."""
        return (len(self.given) + self.free,)

    def pieces(self, first: int, step: int) -> Iterator[Block]:
        """Return the block of a number, and every so many after it."""
        places = self._places(first) if first < self.n_pieces else None
        while places is not None:
            yield Block((*self._fixed, *(self._tiles[place] for place in places)))
            for _ in range(step):
                places = None if places is None else self._after(places)

    def _places(self, number: int) -> tuple[int, ...]:
        """Return the tiles of the block of a number: places that do not descend, in order."""
        places: list[int] = []
        tile = 0
        for rest in range(self.free - 1, -1, -1):
            # So many blocks go on from here with this tile.
            while number >= (n := comb(len(self._tiles) - tile + rest - 1, rest)):
                number, tile = number - n, tile + 1
            places.append(tile)
        return tuple(places)

    def _after(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the tiles of the next block, or None after the last."""
        last = len(self._tiles) - 1
        at = max((i for i, place in enumerate(places) if place < last), default=None)
        if at is None:
            return None
        return places[:at] + (places[at] + 1,) * (self.free - at)

    def drawn(self, n: int, seed: int) -> Ints:
        """Return about so many sets, drawn with a seed."""
        rng = np.random.default_rng(seed)
        if len(self.genes) < self.free:
            return np.zeros((0, self.sizes[0]), dtype=np.int64)
        return self._whole(rng.choice(self.genes, (n, self.free)))

    def varied(self, sets: Ints, n: int, seed: int) -> Ints:
        """Return about so many that differ from some of these, [m, size], by one gene.

        The new gene is any one, or, as often, one of another of these sets.
        """
        rng = np.random.default_rng(seed)
        chosen = sets[~np.isin(sets, self.given)].reshape(len(sets), self.free)
        if not len(chosen):
            return np.zeros((0, self.sizes[0]), dtype=np.int64)
        found = chosen[rng.integers(len(chosen), size=n)]
        new = np.where(
            rng.random(n) < 0.5, rng.choice(self.genes, n), rng.choice(chosen.ravel(), n)
        )
        found[np.arange(n), rng.integers(self.free, size=n)] = new
        return self._whole(found)

    def _whole(self, chosen: Ints) -> Ints:
        """Return the sets of rows of chosen genes, each once; none has a gene twice."""
        fixed = np.broadcast_to(
            np.array(self.given, dtype=np.int64), (len(chosen), len(self.given))
        )
        sets = np.sort(np.concatenate([fixed, chosen], axis=1), axis=1)
        return np.unique(sets[(np.diff(sets, axis=1) > 0).all(axis=1)], axis=0)


class Listed:
    """Sets that are given one by one, of any sizes.

    Parameters
    ----------
    by_size
        Ascending gene indices, [m, size], of each size; every set once.
    sets_a_piece
        How many sets a piece has, at most.
    """

    def __init__(self, by_size: Sequence[Ints], *, sets_a_piece: int = 64**3) -> None:
        self.by_size = sorted((sets for sets in by_size if len(sets)), key=lambda s: s.shape[1])
        self._pieces = [
            sets[at : at + sets_a_piece]
            for sets in self.by_size
            for at in range(0, len(sets), sets_a_piece)
        ]

    @property
    def n_sets(self) -> int:
        """Number of sets in all."""
        return sum(map(len, self.by_size))

    @property
    def n_pieces(self) -> int:
        """Number of pieces."""
        return len(self._pieces)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many genes the sets have, ascending."""
        return tuple(sets.shape[1] for sets in self.by_size)

    def pieces(self, first: int, step: int) -> Iterator[Ints]:
        """Return the piece of a number, and every so many after it."""
        yield from self._pieces[first::step]

    def drawn(self, n: int, seed: int) -> Ints:
        """Return no sets: there are not so many that thresholds from the start would help."""
        return np.zeros((0, 1), dtype=np.int64)

    def varied(self, sets: Ints, n: int, seed: int) -> Ints:
        """Return no sets, as `drawn`."""
        return np.zeros((0, 1), dtype=np.int64)
