"""A batch of genotypes, the ragged pair (genes, offsets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from deltacell.base.arrays import Bools, Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError
from deltacell.screen.gene_keys import sorted_matrix


@dataclass(frozen=True, eq=False, slots=True)
class Genotypes:
    """Sets of deleted genes: genotype ``b`` deletes ``genes[offsets[b] : offsets[b + 1]]``.

    ``condition`` numbers the condition of each, if they differ; no predictor reads it yet.
    """

    genes: torch.Tensor  # indices, int64 [total]
    offsets: torch.Tensor  # int64 [batch + 1]
    condition: torch.Tensor | None = None  # int64 [batch]

    @classmethod
    def of(cls, sets: Iterable[Sequence[int]]) -> Genotypes:
        """Return genotypes from lists of gene indices."""
        sets = list(map(list, sets))
        genes = torch.tensor(list(chain.from_iterable(sets)), dtype=torch.int64)
        lengths = torch.tensor([0, *map(len, sets)], dtype=torch.int64)
        return cls(genes, lengths.cumsum(0))

    @classmethod
    def concat(cls, parts: Sequence[Genotypes]) -> Genotypes:
        """Return the genotypes of all parts in order; either all have conditions or none has."""
        sizes = torch.cat([torch.zeros(1, dtype=torch.int64), *(part.sizes for part in parts)])
        genes = torch.cat([part.genes for part in parts])
        conditions = [part.condition for part in parts if part.condition is not None]
        if len(conditions) not in (0, len(parts)):
            raise InputError("only some of the genotypes have conditions", code="bad-genotypes")
        return cls(genes, sizes.cumsum(0), torch.cat(conditions) if conditions else None)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.split(self.genes, self.sizes.tolist()))

    @property
    def sizes(self) -> torch.Tensor:
        """Number of deleted genes of each genotype, [batch]."""
        return self.offsets.diff()

    @property
    def owner(self) -> torch.Tensor:
        """The genotype that each entry of `genes` belongs to, [total]."""
        batch = torch.arange(len(self), device=self.genes.device)
        return torch.repeat_interleave(batch, self.sizes, output_size=len(self.genes))

    @property
    def nbytes(self) -> int:
        """Size of the genes and offsets in bytes."""
        return self.genes.nbytes + self.offsets.nbytes

    def take(self, rows: torch.Tensor) -> Genotypes:
        """Return the genotypes at the given rows, in their order, on the same device."""
        device = self.genes.device
        host_rows = rows.cpu()
        host_offsets = self.offsets.cpu()
        starts = host_offsets[host_rows].numpy()
        sizes = host_offsets.diff()[host_rows].numpy()
        entries = torch.from_numpy(ragged_positions(starts, sizes))
        offsets = torch.from_numpy(offsets_of(sizes))
        condition = None if self.condition is None else self.condition[rows.to(device)]
        return Genotypes(self.genes[entries.to(device)], offsets.to(device), condition)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Genotypes:
        """Return the genotypes on a device."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        condition = None if self.condition is None else moved(self.condition)
        return Genotypes(moved(self.genes), moved(self.offsets), condition)

    def pin_memory(self) -> Genotypes:
        """Return the genotypes in pinned memory, from which copies to a device do not wait."""
        condition = None if self.condition is None else self.condition.pin_memory()
        return Genotypes(self.genes.pin_memory(), self.offsets.pin_memory(), condition)

    def check(self, n_genes: int) -> Genotypes:
        """Return self, or raise if a genotype is empty, repeats a gene or has an invalid index."""
        genes = self.genes
        offsets = self.offsets
        sizes = self.sizes
        covers_all = len(offsets) and offsets[0] == 0 and offsets[-1] == len(genes)
        are_int64 = genes.dtype == offsets.dtype == torch.int64
        if not covers_all or not are_int64 or (sizes < 0).any():
            message = f"genes and offsets must be int64, the latter from 0 to {len(genes)}"
            raise InputError(message, code="bad-genotypes")
        owner = self.owner
        is_bad = sizes < 1
        is_bad[owner[(genes < 0) | (genes >= n_genes)]] = True
        key, order = (owner * n_genes + genes).sort()
        repeated = order[1:][key[1:] == key[:-1]]
        is_bad[owner[repeated]] = True
        if is_bad.any():
            first = int(is_bad.nonzero()[0])
            deleted = genes[offsets[first] : offsets[first + 1]].tolist()
            message = (
                f"genotype {first} deletes the genes {deleted}; expected one or more different "
                f"ones from 0 to {n_genes - 1}"
            )
            raise InputError(message, code="bad-genotypes")
        return self


def sets_with(marked: Bools, offsets: Ints) -> Bools:
    """Return which sets have an entry that is marked, [sets]."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.bincount(owner[marked], minlength=len(offsets) - 1) > 0


def repeats_a_gene(genes: Ints, offsets: Ints) -> Bools:
    """Return which sets contain a gene more than once; negative indices are ignored."""
    matrix = sorted_matrix(genes, offsets)
    equals_previous = matrix[:, 1:] == matrix[:, :-1]
    is_gene = matrix[:, 1:] >= 0
    repeated: Bools = (equals_previous & is_gene).any(axis=1)
    return repeated
