"""Genotypes as plain arrays, in an order that no numbering of the genes can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from deltacell.arrays import AnyArray, Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Genes
from deltacell.screen.genotypes import Genotypes, set_keys


class GeneOrder:
    """The genes of a cell in order of their systematic names.

    A fitted predictor numbers genes by their place in it, so that a renumbering of the cell changes
    nothing, not even the rounding.
    """

    def __init__(self, genes: Genes) -> None:
        self.cell_names = genes.systematic
        self.gene: Ints = np.array(
            sorted(range(len(genes)), key=lambda i: genes.systematic[i].upper()), dtype=np.int64
        )
        self.place: Ints = np.argsort(self.gene)

    @property
    def names(self) -> list[str]:
        """The systematic names, in order."""
        return [self.cell_names[i].upper() for i in self.gene]

    def __len__(self) -> int:
        return len(self.gene)

    def sets(self, genotypes: Genotypes) -> GeneSets:
        """Return genotypes of the cell with their genes as places, ascending within a set."""
        places = self.place[genotypes.genes.cpu().numpy()]
        offsets = genotypes.offsets.cpu().numpy().copy()
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return GeneSets(places[np.lexsort((places, owner))], offsets)


class GenePairs(NamedTuple):
    """All unordered pairs of genes within each set, the smaller gene first.

    Pairs ``offsets[b] : offsets[b + 1]`` belong to set ``b``.
    """

    first: Ints
    second: Ints
    offsets: Ints


@dataclass(frozen=True, eq=False)
class GeneSets:
    """Sets of genes: set ``b`` is ``genes[offsets[b] : offsets[b + 1]]``, ascending."""

    genes: Ints  # places in the `GeneOrder`, [total]
    offsets: Ints  # [sets + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Number of genes of each set."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        """The set that each entry of `genes` belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def take(self, rows: Ints) -> GeneSets:
        """Return the sets at the given positions, in that order."""
        sizes = self.sizes[rows]
        at = ragged_positions(self.offsets[:-1][rows], sizes)
        return GeneSets(self.genes[at], offsets_of(sizes))

    def slice(self, start: int, stop: int) -> GeneSets:
        """Return the sets ``start : stop``."""
        offsets = self.offsets[start : stop + 1]
        return GeneSets(self.genes[offsets[0] : offsets[-1]], offsets - offsets[0])

    def pairs(self) -> GenePairs:
        """Return the pairs of genes within each set; a set of one gene has none."""
        n = len(self.genes)
        after = np.repeat(self.offsets[1:], self.sizes) - np.arange(n) - 1
        first = np.repeat(np.arange(n), after)
        second = ragged_positions(np.arange(1, n + 1), after)
        offsets = offsets_of(self.sizes * (self.sizes - 1) // 2)
        return GenePairs(self.genes[first], self.genes[second], offsets)

    def indicators(self, n_genes: int) -> sp.csr_array:
        """Return the matrix [sets, genes] that is 1 where a set holds a gene."""
        ones = np.ones(len(self.genes))
        return sp.csr_array((ones, self.genes, self.offsets), shape=(len(self), n_genes))

    def keys(self, n_genes: int) -> AnyArray:
        """Return one key per set, equal for equal sets."""
        return set_keys(self.genes, self.offsets, n_genes)

    def distinct(self, n_genes: int) -> tuple[Ints, int]:
        """Return the number of each set, shared by equal sets, and how many there are."""
        _, number = np.unique(self.keys(n_genes), return_inverse=True)
        return number.ravel(), int(number.max()) + 1


def look_up(keys: AnyArray, wanted: AnyArray) -> tuple[Ints, Bools]:
    """Return where each wanted key is among ascending keys, and whether it is there."""
    at = np.searchsorted(keys, wanted)
    found = at < len(keys)
    found[found] = keys[at[found]] == wanted[found]
    return at, found
