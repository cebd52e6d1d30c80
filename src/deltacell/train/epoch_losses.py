"""The losses of an epoch, added up where they were computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from deltacell.models.losses import world_size

Losses = dict[str, Tensor]
"""This rank's share of the losses of a global batch: ``loss``, which is minimised, and parts."""


class SavedLosses(TypedDict):
    """The losses of an epoch that a checkpoint interrupts, summed over ranks."""

    genotypes: int
    sums: Losses


class EpochLosses:
    """The sums of the losses of an epoch, which stay on the device until its end.

    Each rank adds up its share of the losses of a global batch, times the genotypes of the batch.
    """

    def __init__(self) -> None:
        self.n_genotypes = 0
        self._sums: Losses = {}

    def add(self, losses: Mapping[str, Tensor], n_genotypes: int) -> None:
        """Add this rank's share of the losses of a global batch with so many genotypes."""
        self.n_genotypes += n_genotypes
        for name, value in losses.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self._sums[name].add_(value.detach(), alpha=n_genotypes)

    def means(self) -> dict[str, float]:
        """Return the mean of each loss over genotypes and ranks; all ranks have to call this."""
        n_genotypes = max(1, self.n_genotypes)
        return {name: float(total / n_genotypes) for name, total in self._over_ranks().items()}

    def clear(self) -> None:
        """Forget the losses of an epoch that has ended."""
        self.n_genotypes = 0
        self._sums = {}

    def state_dict(self) -> SavedLosses:
        """Return the sums over ranks; all ranks have to call this."""
        return {"genotypes": self.n_genotypes, "sums": self._over_ranks()}

    def load_state_dict(self, state: SavedLosses, device: torch.device, *, is_first: bool) -> None:
        """Continue from saved sums; ranks other than the first start with 0, as sums are summed."""
        self.n_genotypes = state["genotypes"]
        share = float(is_first)
        self._sums = {
            name: share * total.to(device, torch.float64) for name, total in state["sums"].items()
        }

    def _over_ranks(self) -> Losses:
        if not self._sums:
            return {}
        totals = torch.stack([*self._sums.values()])
        if world_size() > 1:
            dist.all_reduce(totals)
        return {name: total.clone() for name, total in zip(self._sums, totals, strict=True)}
