"""A batch of genotypes by their numbers of genes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deltacell.propagate.transfer import TensorMap, to_device
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class SetsOfSize:
    """The genotypes of a batch that delete the same number of genes."""

    rows: Tensor  # their places in the batch, int64 [b]
    genes: Tensor  # ascending, int64 [b, size]


@dataclass(frozen=True, eq=False)
class PreparedSets:
    """A batch of genotypes, grouped by size on the host."""

    n_genotypes: int
    by_size: tuple[SetsOfSize, ...]  # sizes ascending

    @classmethod
    def of(cls, genotypes: Genotypes) -> PreparedSets:
        """Return the groups of a batch; the device has to be waited for if it is not on the host.

        >>> prepared = PreparedSets.of(Genotypes.of([[2, 1], [0], [3, 0]]))
        >>> [(sets.rows.tolist(), sets.genes.tolist()) for sets in prepared.by_size]
        [([1], [[0]]), ([0, 2], [[1, 2], [0, 3]])]
        """
        host = genotypes.to("cpu")
        sizes = host.sizes
        groups = []
        for size in sorted(set(sizes.tolist())):
            rows = torch.nonzero(sizes == size).squeeze(1)
            positions = host.offsets[:-1][rows, None] + torch.arange(size)
            genes = host.genes[positions].sort(dim=1).values
            groups.append(SetsOfSize(rows, genes))
        return cls(len(genotypes), tuple(groups))

    def __len__(self) -> int:
        return self.n_genotypes

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PreparedSets:
        """Return the batch on a device."""
        return self.with_tensors(to_device(device, non_blocking=non_blocking))

    def with_tensors(self, function: Callable[[Tensor], Tensor]) -> PreparedSets:
        """Return the batch with a function applied to all tensors."""
        by_size = TensorMap(function)(self.by_size)
        return PreparedSets(self.n_genotypes, by_size)
