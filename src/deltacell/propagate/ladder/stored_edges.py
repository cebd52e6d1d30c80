"""The strategy `stored_edges`: which edges a genotype removes, made ahead and on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deltacell.arrays import AnyArray
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Hop, State
from deltacell.propagate.ladder.incidence import removed_edges
from deltacell.propagate.ladder.link import Link, links_of
from deltacell.propagate.ladder.masked import masked_mutants, not_prepared, unmasked_wild_type
from deltacell.propagate.ladder.stored import Stored
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class RemovedEdges(Deleted):
    """A batch with the edges that it removes, which is what its loader sends.

    Parameters
    ----------
    positions
        Of the removed edges, genotype after genotype, int64, one tensor a link.
    sizes
        How many they are of each genotype, int64 [b], one tensor a link.
    """

    positions: tuple[torch.Tensor, ...] = ()
    sizes: tuple[torch.Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of positions and genes a genotype."""
        sent = sum(t.nbytes for t in (*self.positions, *self.sizes))
        return (sent + self.genotypes.nbytes) / max(len(self), 1)


class StoredEdges(Stored):
    """`edge_mask` with the positions of each genotype's removed edges in LMDB.

    It spares the loader the look-up, and takes a store that has to be made for every screen and
    thrown away with every change of the cell. The masks are made from the positions in the step,
    and the step costs what it did.

    Parameters
    ----------
    store
        The folder; `fill` makes it.
    genotypes
        Those of the whole screen; where they are given, a store that was made for others is
        refused at the first batch.
    """

    def __init__(
        self, store: str | os.PathLike[str] | None = None, genotypes: Genotypes | None = None
    ) -> None:
        super().__init__("stored_edges", "store of removed edges", store, genotypes)

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> RemovedEdges:
        """Read the removed edges of a batch."""
        read = self._read(hops, deleted, np.int64)
        return RemovedEdges(
            deleted.genotypes,
            deleted.nodes,
            tuple(torch.cat([_NONE, *positions]) for positions in read),
            tuple(
                torch.tensor([len(p) for p in positions], dtype=torch.int64) for positions in read
            ),
        )

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
        """Make the masks, and propagate the batch as one graph, edge by edge."""
        if not isinstance(deleted, RemovedEdges):
            raise not_prepared(self.name)
        device = wild_type.first[GENE].device
        masks = []
        for link, positions, sizes in zip(
            links_of(hops), deleted.positions, deleted.sizes, strict=True
        ):
            mask = torch.ones(len(deleted), link.n_edges, dtype=torch.bool, device=device)
            owner = torch.arange(len(deleted), device=device).repeat_interleave(sizes)
            mask[owner, positions] = False
            masks.append(mask)
        return masked_mutants(hops, wild_type, deleted, readout, masks, vectors=vectors)

    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        return removed_edges(link, deleted, genotype).numpy()


_NONE = torch.zeros(0, dtype=torch.int64)
