"""Gene sets in blocks that share genes and are known by their number, and sets with scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb, prod
from typing import NamedTuple

import numpy as np

from deltacell.arrays import AnyArray, Floats, Ints


class Scored(NamedTuple):
    """Gene sets with their scores."""

    sets: Ints  # [m, size]
    score: Floats  # the mean over runs, in the unit of the screen, [m]
    spread: Floats  # the standard deviation over runs, NaN for one run, [m]

    @classmethod
    def none(cls, width: int) -> Scored:
        """Return no sets."""
        nothing = np.zeros(0, dtype=np.float32)
        return cls(np.zeros((0, width), dtype=np.int64), nothing, nothing)

    @classmethod
    def join(cls, pieces: Sequence[Scored]) -> Scored:
        """Return several pieces as one."""
        sets, score, spread = zip(*pieces, strict=True)
        return cls(np.concatenate(sets), np.concatenate(score), np.concatenate(spread))

    def take(self, rows: AnyArray | slice) -> Scored:
        """Return some rows, by place or by mask."""
        return Scored(self.sets[rows], self.score[rows], self.spread[rows])

    def padded(self, width: int) -> Scored:
        """Return the sets with their genes ascending and padded in front with -1."""
        sets = np.full((len(self.sets), width), -1, dtype=np.int64)
        sets[:, width - self.sets.shape[1] :] = np.sort(self.sets, axis=1)
        return self._replace(sets=sets)


@dataclass(frozen=True, eq=False)
class Block:
    """All sets with one gene from each axis.

    Neighbouring axes that are the same array stand for sets of genes of that array: each set
    occurs once, its genes in the order of the array. Other axes share no gene.
    """

    axes: tuple[Ints, ...]

    def __len__(self) -> int:
        runs = [list(same) for _, same in groupby(self.axes, key=id)]
        return prod(comb(len(same[0]), len(same)) for same in runs)

    @property
    def size(self) -> int:
        """Number of genes of a set."""
        return len(self.axes)

    @property
    def shared(self) -> list[bool]:
        """Whether each axis after the first is the one before it."""
        return [a is b for a, b in zip(self.axes, self.axes[1:], strict=False)]

    def sets(self) -> Ints:
        """Return all sets, [len, size], in the order of the axes."""
        if not len(self):
            return np.zeros((0, self.size), dtype=np.int64)
        at = np.indices([len(axis) for axis in self.axes]).reshape(self.size, -1)
        for i, same in enumerate(self.shared):
            if same:
                at = at[:, at[i] < at[i + 1]]
        return np.stack([axis[rows] for axis, rows in zip(self.axes, at, strict=True)], axis=1)


Piece = Block | Ints  # a block, or a list of sets of one size, [m, size]


class Combinations:
    """All sets of the ``given`` genes and enough others to have ``size`` genes."""

    def __init__(
        self, genes: Ints, size: int, given: Sequence[int] = (), *, sets_per_piece: int = 64**3
    ) -> None:
        self.given = np.array(given, dtype=np.int64)
        self.free = size - len(given)
        self.sizes: tuple[int, ...] = (size,)
        self.genes: Ints = np.setdiff1d(genes, self.given)
        if self.free < 1:
            raise ValueError(f"sets of {size} genes with {len(given)} given")
        side = max(1, round(sets_per_piece ** (1 / self.free)))
        # Neighbours on a chromosome are linked: a tile of them would say little about the others.
        mixed = np.random.default_rng(0).permutation(self.genes)
        # One array per tile, the same in every block: what is computed for it can be cached.
        self._tiles = [np.sort(mixed[at : at + side]) for at in range(0, len(mixed), side)]
        self.n_sets = comb(len(self.genes), self.free)
        self.n_pieces = comb(len(self._tiles) + self.free - 1, self.free) if self._tiles else 0

    def pieces(self, first: int, step: int) -> Iterator[Block]:
        """Yield the block of a number, and every ``step``-th after it."""
        fixed = tuple(self.given[i : i + 1] for i in range(len(self.given)))
        places = self._places(first) if first < self.n_pieces else None
        while places is not None:
            yield Block((*fixed, *(self._tiles[place] for place in places)))
            for _ in range(step):
                places = None if places is None else self._after(places)

    def _places(self, number: int) -> tuple[int, ...]:
        """Return the tiles of the block of a number: places that do not descend, in order."""
        places: list[int] = []
        tile = 0
        for rest in range(self.free - 1, -1, -1):
            # So many blocks continue from here with this tile.
            while number >= (n := comb(len(self._tiles) - tile + rest - 1, rest)):
                number, tile = number - n, tile + 1
            places.append(tile)
        return tuple(places)

    def _after(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        last = len(self._tiles) - 1
        at = max((i for i, place in enumerate(places) if place < last), default=None)
        return None if at is None else places[:at] + (places[at] + 1,) * (self.free - at)

    def draw(self, n: int, seed: int) -> Ints:
        """Return at most ``n`` random sets."""
        rng = np.random.default_rng(seed)
        if len(self.genes) < self.free:
            return np.zeros((0, self.sizes[0]), dtype=np.int64)
        return self._whole(rng.choice(self.genes, (n, self.free)))

    def vary(self, sets: Ints, n: int, seed: int) -> Ints:
        """Return at most ``n`` sets that differ from some of these, [m, size], by one gene.

        The new gene is any one, or, as often, one of another of these sets.
        """
        rng = np.random.default_rng(seed)
        chosen = sets[~np.isin(sets, self.given)].reshape(len(sets), self.free)
        if not len(chosen):
            return np.zeros((0, self.sizes[0]), dtype=np.int64)
        found = chosen[rng.integers(len(chosen), size=n)]
        any_gene = rng.random(n) < 0.5
        new = np.where(any_gene, rng.choice(self.genes, n), rng.choice(chosen.ravel(), n))
        found[np.arange(n), rng.integers(self.free, size=n)] = new
        return self._whole(found)

    def _whole(self, chosen: Ints) -> Ints:
        """Return the sets of rows of chosen genes, each once; no set has a gene twice."""
        fixed = np.broadcast_to(self.given, (len(chosen), len(self.given)))
        sets = np.sort(np.concatenate([fixed, chosen], axis=1), axis=1)
        return np.unique(sets[(np.diff(sets, axis=1) > 0).all(axis=1)], axis=0)


class Listed:
    """Sets given one by one: ascending genes, [m, size], for each size, every set once."""

    def __init__(self, by_size: Sequence[Ints], *, sets_per_piece: int = 64**3) -> None:
        by_size = sorted((sets for sets in by_size if len(sets)), key=lambda s: s.shape[1])
        self._pieces = [
            sets[at : at + sets_per_piece]
            for sets in by_size
            for at in range(0, len(sets), sets_per_piece)
        ]
        self.n_sets = sum(map(len, by_size))
        self.n_pieces = len(self._pieces)
        self.sizes = tuple(sets.shape[1] for sets in by_size)

    def pieces(self, first: int, step: int) -> Iterator[Ints]:
        """Yield the piece of a number, and every ``step``-th after it."""
        yield from self._pieces[first::step]


GeneSets = Combinations | Listed
