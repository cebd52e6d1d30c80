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
        places = self.place[genotypes.genes.cpu().numpy()]
        sets = GeneSets(places, genotypes.offsets.cpu().numpy().copy())
        return GeneSets(places[np.lexsort((places, sets.owner))], sets.offsets)


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
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self)), self.sizes)

    def take(self, rows: Ints) -> GeneSets:
        sizes = self.sizes[rows]
        at = ragged_positions(self.offsets[:-1][rows], sizes)
        return GeneSets(self.genes[at], offsets_of(sizes))

    def followed_by(self, others: GeneSets) -> GeneSets:
        """Return these sets and then the others."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + others.offsets[1:]])
        return GeneSets(np.concatenate([self.genes, others.genes]), offsets)

    def total(self, values: AnyArray) -> AnyArray:
        """Return the sum of values over the genes of each set, none of which may be empty."""
        total: AnyArray = np.add.reduceat(values, self.offsets[:-1])
        return total

    def pairs(self) -> GenePairs:
        n = len(self.genes)
        after = np.repeat(self.offsets[1:], self.sizes) - np.arange(n) - 1
        first = np.repeat(np.arange(n), after)
        second = ragged_positions(np.arange(1, n + 1), after)
        offsets = offsets_of(self.sizes * (self.sizes - 1) // 2)
        return GenePairs(self.genes[first], self.genes[second], offsets)


def look_up(keys: AnyArray, wanted: AnyArray) -> tuple[Ints, Bools]:
    """Return the position of each wanted key in ascending keys, and whether it is present."""
    at = np.searchsorted(keys, wanted)
    found = at < len(keys)
    found[found] = keys[at[found]] == wanted[found]
    return at, found


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
    filled = sizes > 0
    first, of_size = offsets[:-1][filled], sizes[filled]
    if len(sizes) and (sizes == 1).all():
        return np.repeat(values, len(how), axis=1)

    def reduced(function: np.ufunc, what: AnyArray) -> AnyArray:
        # Row by row, so that the rounding of a sum does not depend on other pieces.
        whole = what[first]
        for i in range(1, of_size.max(initial=0)):
            longer = slice(None) if of_size.min() > i else of_size > i
            whole[longer] = function(whole[longer], what[first[longer] + i])
        return whole

    smallest, largest = (np.fmin, np.fmax) if skip_missing else (np.minimum, np.maximum)
    result = np.full((len(sizes), values.shape[1], len(how)), np.nan, dtype=np.float32)
    for i, aggregate in enumerate(how):
        if aggregate == "mean":
            wide, n = values.astype(np.float64), sizes[filled, None]
            if skip_missing:
                present = ~np.isnan(wide)
                wide, n = np.where(present, wide, 0), reduced(np.add, present.astype(np.int64))
            total = reduced(np.add, wide)
            result[filled, :, i] = np.where(n > 0, total / np.maximum(n, 1), np.nan)
        else:
            result[filled, :, i] = reduced(smallest if aggregate == "min" else largest, values)
    return result.reshape(len(sizes), values.shape[1] * len(how))
