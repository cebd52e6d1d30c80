"""Stage 2 of `late`: rows that several genes of a genotype touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deltacell.base.arrays import Ints, offsets_of, ragged_positions
from deltacell.propagate.late.units import SingleUnits, as_indices
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class Members:
    """The genes of all genotypes, genotype by genotype; all int64 [total] but for the sizes."""

    genes: Ints  # distinct, ascending, [g]
    number: Ints  # of each member's gene among `genes`
    genotype: Ints
    position: Ints  # of each member within its genotype
    sizes: Ints  # the number of genes of each genotype, [b]

    @classmethod
    def of(cls, genotypes: Genotypes) -> Members:
        """Return the members of genotypes on the host.

        >>> members = Members.of(Genotypes.of([[2], [0, 2]]))
        >>> members.genes.tolist(), members.number.tolist(), members.genotype.tolist()
        ([0, 2], [1, 0, 1], [0, 1, 1])
        """
        sizes = np.diff(genotypes.offsets.numpy())
        genes, number = np.unique(genotypes.genes.numpy(), return_inverse=True)
        genotype = np.repeat(np.arange(len(sizes)), sizes)
        position = np.arange(len(number)) - offsets_of(sizes)[genotype]
        return cls(genes, number, genotype, position, sizes)

    @property
    def largest(self) -> int:
        """The number of genes of the largest genotype."""
        return int(self.sizes.max(initial=0))


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows that two or more genes of a genotype touch."""

    genotype: Ints  # [s]
    rows: Ints  # [s]
    # The units of the single genes of the genotype that touch the row, by their position in the
    # genotype, and -1 for those that do not, [s, largest].
    touching_units: Ints


def shared_rows(single: SingleUnits, members: Members, n_genes: int) -> SharedRows:
    """Return the rows that several genes of a genotype touch, genotype by genotype.

    On the path 0 - 1 - 2 - 3, of the genotype {0, 2}, this is row 1: unit 1 is row 1 without gene
    0, and unit 2 is row 1 without gene 2.

    >>> from deltacell.propagate.late.units import single_units, touch_index
    >>> from deltacell.propagate.product import SparseMatrix
    >>> path = SparseMatrix([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
    >>> members = Members.of(Genotypes.of([[0, 2]]))
    >>> shared = shared_rows(single_units(touch_index(path), members.genes), members, 4)
    >>> shared.rows.tolist(), shared.touching_units.tolist()
    ([1], [[1, 2]])
    """
    n_units = np.diff(single.starts)[members.number]
    unit = ragged_positions(single.starts[:-1][members.number], n_units)
    key = np.repeat(members.genotype, n_units) * n_genes + single.rows[unit]
    keys, number, count = np.unique(key, return_inverse=True, return_counts=True)
    is_shared = count > 1
    genotype, rows = np.divmod(keys[is_shared], n_genes)
    touching_units = np.full((len(rows), members.largest), -1, dtype=np.int64)
    of_shared = is_shared[number]
    place = (np.cumsum(is_shared) - 1)[number[of_shared]]
    position = np.repeat(members.position, n_units)[of_shared]
    touching_units[place, position] = unit[of_shared]
    return SharedRows(genotype, rows, touching_units)


@dataclass(frozen=True, eq=False)
class SignedSum:
    """Terms of units that are added to sums, each with a sign."""

    units: Tensor  # int64 [k]
    places: Tensor  # of the sums, int64 [k]
    signs: Tensor  # float64 [k, 1]

    @classmethod
    def of(cls, units: list[Ints], places: list[Ints], signs: list[float]) -> SignedSum:
        """Return groups of terms, each with one sign."""
        lengths = [len(group) for group in places]
        sign = np.repeat(signs, lengths)
        return cls(
            as_indices(np.concatenate(units)),
            as_indices(np.concatenate(places)),
            torch.from_numpy(sign).unsqueeze(1),
        )


def corrections(shared: SharedRows, n_single: int) -> SignedSum:
    """Return what replaces the terms of each gene alone by that of all genes that touch a row.

    Units of shared rows are counted after the `n_single` ones of single genes. In the example of
    the path, unit 5, which is row 1 without {0, 2}, is added, and the units 1 and 2 are subtracted:

    >>> shared = SharedRows(np.array([0]), np.array([1]), np.array([[1, 2]]))
    >>> terms = corrections(shared, n_single=5)
    >>> terms.units.tolist(), terms.signs.flatten().tolist()
    ([5, 1, 2], [1.0, -1.0, -1.0])
    """
    row, position = np.nonzero(shared.touching_units >= 0)
    units = [n_single + np.arange(len(shared.rows)), shared.touching_units[row, position]]
    places = [shared.genotype, shared.genotype[row]]
    return SignedSum.of(units, places, [1.0, -1.0])
