"""Genotypes as arrays, in an order that does not depend on how a cell numbers its genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deltacell.base.arrays import AnyArray, Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Genes
from deltacell.screen.genotypes import Genotypes

EVERY: Sequence[str] = ("min", "max", "mean")


class GeneOrder:
    """The genes of a cell in the order of their systematic names.

    Fitted predictors number genes by their place in it, so that renumbering the genes of a cell
    changes nothing, not even the rounding.
    """

    def __init__(self, genes: Genes) -> None:
        self.genes = genes
        names = [name.upper() for name in genes.systematic]
        self.gene: Ints = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
        self.place: Ints = np.argsort(self.gene)
        self.names = [names[i] for i in self.gene]

    def __len__(self) -> int:
        return len(self.gene)

    def sets(self, genotypes: Genotypes) -> GeneSets:
        """Return genotypes as sets of ascending places in this order."""
        places = self.place[genotypes.genes.cpu().numpy()]
        sets = GeneSets(places, genotypes.offsets.cpu().numpy().copy())
        ascending = np.lexsort((places, sets.owner))
        return GeneSets(places[ascending], sets.offsets)


class GenePairs(NamedTuple):
    """All unordered pairs of genes within each set, the smaller gene first."""

    first: Ints
    second: Ints
    offsets: Ints  # pairs ``offsets[b] : offsets[b + 1]`` belong to set ``b``


@dataclass(frozen=True, eq=False)
class GeneSets:
    """Sets of genes: set ``b`` is ``genes[offsets[b] : offsets[b + 1]]``, ascending."""

    genes: Ints  # places in the `GeneOrder`, [total]
    offsets: Ints  # [sets + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """The number of genes of each set."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        """The number of the set of each gene, [total]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def take(self, rows: Ints) -> GeneSets:
        """Return some of the sets."""
        sizes = self.sizes[rows]
        positions = ragged_positions(self.offsets[:-1][rows], sizes)
        return GeneSets(self.genes[positions], offsets_of(sizes))

    def followed_by(self, others: GeneSets) -> GeneSets:
        """Return these sets and then the others."""
        n_genes = self.offsets[-1]
        offsets = np.concatenate([self.offsets, n_genes + others.offsets[1:]])
        return GeneSets(np.concatenate([self.genes, others.genes]), offsets)

    def total(self, values: AnyArray) -> AnyArray:
        """Return the sum of values over the genes of each set, none of which may be empty."""
        total: AnyArray = np.add.reduceat(values, self.offsets[:-1])
        return total

    def pairs(self) -> GenePairs:
        """Return all pairs of genes within each set."""
        n = len(self.genes)
        end_of_set = np.repeat(self.offsets[1:], self.sizes)
        n_after = end_of_set - np.arange(n) - 1  # genes of the set after each gene
        first = np.repeat(np.arange(n), n_after)
        second = ragged_positions(np.arange(1, n + 1), n_after)
        n_pairs = self.sizes * (self.sizes - 1) // 2
        return GenePairs(self.genes[first], self.genes[second], offsets_of(n_pairs))


def look_up(keys: AnyArray, wanted: AnyArray) -> tuple[Ints, Bools]:
    """Return the position of each wanted key in ascending keys, and whether it is present."""
    positions = np.searchsorted(keys, wanted)
    is_present = positions < len(keys)
    is_present[is_present] = keys[positions[is_present]] == wanted[is_present]
    return positions, is_present


def aggregated(
    values: AnyArray,
    offsets: Ints,
    how: Sequence[str],
    *,
    skip_missing: bool = False,
) -> AnyArray:
    """Return aggregates of rows ``offsets[b] : offsets[b + 1]``, [pieces, columns * aggregates].

    They are NaN for a piece without rows and, unless missing values are skipped, for one with NaN.
    """
    sizes = np.diff(offsets)
    if len(sizes) and (sizes == 1).all():
        return np.repeat(values, len(how), axis=1)
    pieces = _FilledPieces.of(offsets)
    result = np.full((len(sizes), values.shape[1], len(how)), np.nan, dtype=np.float32)
    for number, aggregate in enumerate(how):
        if aggregate == "mean":
            of_pieces = pieces.mean(values, skip_missing=skip_missing)
        elif aggregate == "min":
            of_pieces = pieces.reduced(np.fmin if skip_missing else np.minimum, values)
        else:
            of_pieces = pieces.reduced(np.fmax if skip_missing else np.maximum, values)
        result[sizes > 0, :, number] = of_pieces
    return result.reshape(len(sizes), values.shape[1] * len(how))


class _FilledPieces(NamedTuple):
    """The pieces of rows that have a row or more."""

    first: Ints  # the first row of each
    sizes: Ints

    @classmethod
    def of(cls, offsets: Ints) -> _FilledPieces:
        sizes = np.diff(offsets)
        is_filled = sizes > 0
        return cls(offsets[:-1][is_filled], sizes[is_filled])

    def reduced(self, function: np.ufunc, values: AnyArray) -> AnyArray:
        """Return the rows of each piece combined by a function, [pieces, columns].

        They are combined row by row, so that the rounding of a sum does not depend on other pieces.
        """
        whole = values[self.first]
        for place in range(1, self.sizes.max(initial=0)):
            longer = slice(None) if self.sizes.min() > place else self.sizes > place
            whole[longer] = function(whole[longer], values[self.first[longer] + place])
        return whole

    def mean(self, values: AnyArray, *, skip_missing: bool) -> AnyArray:
        """Return the mean of each piece in double precision, [pieces, columns]."""
        numbers = values.astype(np.float64)
        count: AnyArray = self.sizes[:, None]
        if skip_missing:
            is_present = ~np.isnan(numbers)
            numbers = np.where(is_present, numbers, 0)
            count = self.reduced(np.add, is_present.astype(np.int64))
        total = self.reduced(np.add, numbers)
        means: AnyArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return means
