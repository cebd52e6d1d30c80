"""Linked genes: too near on a chromosome for a cross to bring their deletions together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Bools, Ints
from deltacell.cell import Genes

LINKED, UNLINKED, UNKNOWN = 1, 0, -1

Codes = npt.NDArray[np.int8]


class Linkage:
    """Whether two genes of a set lie on one chromosome with fewer base pairs between them.

    Parameters
    ----------
    genes
        With their places.
    distance
        Base pairs from the end of one gene to the start of the other; genes that overlap have 0.
    """

    def __init__(self, genes: Genes, distance: int) -> None:
        names = {name: i for i, name in enumerate(dict.fromkeys(genes.chromosome))}
        self._chromosome: Ints = np.array([names[c] for c in genes.chromosome], dtype=np.int64)
        self._on_one: Bools = np.array([bool(c) for c in genes.chromosome], dtype=bool)
        self._placed: Bools = self._on_one & genes.has_position
        self._start, self._end = genes.start, genes.end
        self._distance = distance

    def of(self, sets: Ints) -> Codes:
        """Return `LINKED`, `UNLINKED` or `UNKNOWN` for each set.

        A set is linked where two of its genes are known to be. It is unknown where none are, and
        the place of a gene is not known well enough to tell.

        Parameters
        ----------
        sets
            Gene indices, [m, size].
        """
        linked: Bools = np.zeros(len(sets), dtype=bool)
        unknown: Bools = np.zeros(len(sets), dtype=bool)
        for a in range(sets.shape[1]):
            for b in range(a + 1, sets.shape[1]):
                near, untold = self._pairs(sets[:, a], sets[:, b])
                linked |= near
                unknown |= untold
        return np.where(linked, LINKED, np.where(unknown, UNKNOWN, UNLINKED)).astype(np.int8)

    def n_pairs(self, genes: Ints) -> int:
        """Return how many pairs of some genes are linked.

        Parameters
        ----------
        genes
            Indices, each once.
        """
        found = 0
        for i in range(len(genes)):
            near, _ = self._pairs(np.full(len(genes) - i - 1, genes[i]), genes[i + 1 :])
            found += int(near.sum())
        return found

    def n_unplaced(self, genes: Ints) -> int:
        """Return how many genes have no known place."""
        return int((~self._placed[genes]).sum())

    def _pairs(self, a: Ints, b: Ints) -> tuple[Bools, Bools]:
        """Return which pairs are linked, and of which it is not known."""
        apart = self._on_one[a] & self._on_one[b] & (self._chromosome[a] != self._chromosome[b])
        told = self._placed[a] & self._placed[b]
        between = np.maximum(self._start[b] - self._end[a], self._start[a] - self._end[b])
        near: Bools = told & ~apart & (np.maximum(between, 0) < self._distance)
        return near, ~told & ~apart
