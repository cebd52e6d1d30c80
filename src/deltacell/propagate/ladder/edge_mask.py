"""The strategy `edge_mask`: all edges of the cell, and a mask over them for every mutant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Hop, State
from deltacell.propagate.ladder.incidence import removed_edges
from deltacell.propagate.ladder.link import links_of
from deltacell.propagate.ladder.masked import (
    Masks,
    masked_mutants,
    not_prepared,
    unmasked_wild_type,
)
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType


@dataclass(frozen=True)
class EdgeMask:
    """No graph a mutant, but a bit an edge: each message is multiplied by it.

    An index from every gene to the positions of its edges says which bits to clear. It saves the
    cutting and the copies of the edges. What it does not save is the work: every mutant still
    gathers a message along each edge of the cell, those that are gone included, and writes it to
    memory twice, before and after the mask.
    """

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "edge_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Masks:
        """Make the masks, genotype by genotype and relation by relation."""
        masks = []
        for link in links_of(hops):
            mask = torch.ones(len(deleted), link.n_edges, dtype=torch.bool)
            for genotype in range(len(deleted)):
                mask[genotype, removed_edges(link, deleted, genotype)] = False
            masks.append(mask)
        return Masks(deleted.genotypes, deleted.nodes, tuple(masks))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, edge by edge."""
        return unmasked_wild_type(hops, state)

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the batch as one graph, edge by edge, with the masks."""
        if not isinstance(deleted, Masks):
            raise not_prepared(self.name)
        return masked_mutants(hops, wild_type, deleted, readout, deleted.masks, vectors=vectors)
