"""A batch of genotypes after the host's part of a step of HeteroCell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deltacell.cell import Cell
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.strategy import AnyStrategy, Plan
from deltacell.propagate.transfer import TensorMap, to_device
from deltacell.screen import Genotypes

if TYPE_CHECKING:
    from deltacell.models.hetero_cell.model import HeteroCell


@dataclass(frozen=True, eq=False)
class PreparedMutants:
    """What a batch deletes, and the plan of a strategy for it."""

    model: HeteroCell
    cell: Cell
    strategy: AnyStrategy
    deleted: Deleted
    plan: Plan | None = None  # None if no mutants are propagated
    lost_together: DeletedNodes | None = None  # the reactions that no smaller set loses

    @property
    def genotypes(self) -> Genotypes:
        """The genotypes of the batch."""
        return self.deleted.genotypes

    def __len__(self) -> int:
        return len(self.deleted)

    def is_for(self, model: HeteroCell, cell: Cell, strategy: AnyStrategy) -> bool:
        """Return whether the batch was prepared for this model, cell and strategy."""
        return self.model is model and self.cell is cell and self.strategy is strategy

    @property
    def loader_bytes_per_genotype(self) -> float:
        """The bytes of the genotypes and of the plan that a loader sends."""
        of_plan = 0 if self.plan is None else self.plan.sent_bytes
        return (self.genotypes.nbytes + of_plan) / max(len(self), 1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PreparedMutants:
        """Return the batch on a device."""
        if self.genotypes.genes.device == torch.device(device):
            return self
        return self.with_tensors(to_device(device, non_blocking=non_blocking))

    def with_tensors(self, function: Callable[[Tensor], Tensor]) -> PreparedMutants:
        """Return the batch with a function applied to all tensors."""
        tensor_map = TensorMap(function)
        return replace(
            self,
            deleted=tensor_map(self.deleted),
            plan=tensor_map(self.plan),
            lost_together=tensor_map(self.lost_together),
        )
