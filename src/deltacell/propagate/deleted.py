"""The nodes that each genotype of a batch takes away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.propagate.hop import GENE, REACTION
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, genotype after genotype.

    Parameters
    ----------
    nodes, owner
        The node, and the genotype that deletes it, int64 [total].
    starts
        Where each genotype begins, and the end; on the host, so that a tile is a slice.
    """

    nodes: torch.Tensor
    owner: torch.Tensor
    starts: tuple[int, ...]

    @classmethod
    def of(cls, nodes: torch.Tensor, offsets: torch.Tensor) -> DeletedNodes:
        """Make them from a ragged pair on the host."""
        owner = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        return cls(nodes, owner, tuple(offsets.tolist()))

    def tile(self, begin: int, end: int) -> DeletedNodes:
        """Return those of genotypes ``begin`` to ``end``, the first of which becomes 0."""
        first, last = self.starts[begin], self.starts[end]
        starts = tuple(s - first for s in self.starts[begin : end + 1])
        return DeletedNodes(self.nodes[first:last], self.owner[first:last] - begin, starts)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> DeletedNodes:
        """Return the same with its tensors on a device."""
        return DeletedNodes(
            self.nodes.to(device, non_blocking=non_blocking),
            self.owner.to(device, non_blocking=non_blocking),
            self.starts,
        )

    def pin_memory(self) -> DeletedNodes:
        """Return a copy in pinned memory, for transfers that do not block."""
        return DeletedNodes(self.nodes.pin_memory(), self.owner.pin_memory(), self.starts)


@dataclass(frozen=True, eq=False)
class Deleted:
    """What a batch of genotypes deletes: its genes, and the reactions that are lost with them.

    Found on the host from gene lists, before the step and ahead of it if one likes; the step then
    never has to wait for a device.

    Parameters
    ----------
    genotypes
        The batch, checked.
    nodes
        The deleted nodes, by kind. A kind that is absent is never deleted.
    """

    genotypes: Genotypes
    nodes: Mapping[str, DeletedNodes]

    @classmethod
    def of(cls, cell: Cell, genotypes: Genotypes, *, metabolism: bool = False) -> Deleted:
        """Find what genotypes delete, or raise where they do not fit the cell.

        Parameters
        ----------
        cell
            The wild type.
        genotypes
            Sets of one gene or more; where they are on a device, this waits for it.
        metabolism
            Whether to find the reactions that are lost.
        """
        genotypes = genotypes.to("cpu").check(cell.n_genes)
        nodes = {GENE: DeletedNodes.of(genotypes.genes, genotypes.offsets)}
        if metabolism:
            if cell.metabolism is None:
                raise InputError("the cell has no metabolism to find lost reactions in")
            nodes[REACTION] = DeletedNodes.of(*cell.metabolism.lost_reactions(genotypes))
        return cls(genotypes, nodes)

    def __len__(self) -> int:
        return len(self.genotypes)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Deleted:
        """Return the same with its tensors on a device."""
        return Deleted(
            self.genotypes.to(device, non_blocking=non_blocking),
            {k: n.to(device, non_blocking=non_blocking) for k, n in self.nodes.items()},
        )

    def pin_memory(self) -> Deleted:
        """Return a copy in pinned memory, for transfers that do not block."""
        return Deleted(
            self.genotypes.pin_memory(), {k: n.pin_memory() for k, n in self.nodes.items()}
        )
