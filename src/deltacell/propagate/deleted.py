"""What a batch of genotypes deletes from a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deltacell.cell import Cell
from deltacell.propagate.hop import GENE, REACTION
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class DeletedNodes:
    """The deleted nodes of one kind, in the order of the genotypes."""

    nodes: Tensor  # int64 [total]
    owner: Tensor  # the genotype that deletes each node, ascending, int64 [total]

    @classmethod
    def of(cls, nodes: Tensor, offsets: Tensor) -> DeletedNodes:
        """Return the nodes of genotypes b, ``nodes[offsets[b] : offsets[b + 1]]``."""
        genotypes = torch.arange(len(offsets) - 1)
        return cls(nodes, torch.repeat_interleave(genotypes, offsets.diff()))


@dataclass(frozen=True, eq=False)
class Deleted:
    """The genes that a batch of genotypes deletes, and the reactions that are lost with them.

    It is made on the host from gene lists, so that the step never has to wait for a device.
    """

    genotypes: Genotypes  # as passed in, after a check
    nodes: Mapping[str, DeletedNodes]  # by kind; kinds without deleted nodes may be absent

    @classmethod
    def of(
        cls,
        cell: Cell,
        genotypes: Genotypes,
        *,
        metabolism: bool = False,
        instead: Tensor | None = None,
    ) -> Deleted:
        """Return the deleted genes and, if `metabolism` is true, the lost reactions.

        With `instead`, [n_genes], a genotype with gene i deletes gene `instead[i]`.
        """
        genotypes = genotypes.to("cpu").check(cell.n_genes)
        genes = genotypes.genes if instead is None else instead[genotypes.genes]
        nodes = {GENE: DeletedNodes.of(genes, genotypes.offsets)}
        if metabolism and cell.metabolism is not None:
            lost = cell.metabolism.lost_reactions(Genotypes(genes, genotypes.offsets))
            nodes[REACTION] = DeletedNodes.of(*lost)
        return cls(genotypes, nodes)

    @property
    def genes(self) -> Genotypes:
        """The deleted genes of each genotype."""
        return Genotypes(self.nodes[GENE].nodes, self.genotypes.offsets)

    def __len__(self) -> int:
        return len(self.genotypes)
