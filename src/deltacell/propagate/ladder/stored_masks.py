"""The strategy `stored_masks`: edge masks that were made ahead and lie on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from deltacell.arrays import AnyArray
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Hop, State
from deltacell.propagate.ladder.incidence import removed_edges
from deltacell.propagate.ladder.link import Link, links_of
from deltacell.propagate.ladder.masked import (
    Masks,
    masked_mutants,
    not_prepared,
    unmasked_wild_type,
)
from deltacell.propagate.ladder.stored import Stored
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.screen import Genotypes


class StoredMasks(Stored):
    """`edge_mask` with the masks themselves in LMDB: reading them is all that is left to do.

    Nothing is made while training, and a byte for every edge of the cell is read from disk and sent
    for every genotype. The step costs what it did.

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
        super().__init__("stored_masks", "store of edge masks", store, genotypes)

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Masks:
        """Read the masks of a batch."""
        read = self._read(hops, deleted, np.bool_)
        return Masks(
            deleted.genotypes,
            deleted.nodes,
            tuple(
                torch.cat([_NONE, *masks]).view(len(deleted), link.n_edges)
                for link, masks in zip(links_of(hops), read, strict=True)
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
        """Propagate the batch as one graph, edge by edge, with the masks."""
        if not isinstance(deleted, Masks):
            raise not_prepared(self.name)
        return masked_mutants(hops, wild_type, deleted, readout, deleted.masks, vectors=vectors)

    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        mask = np.ones(link.n_edges, dtype=np.bool_)
        mask[removed_edges(link, deleted, genotype).numpy()] = False
        return mask


_NONE = torch.zeros(0, dtype=torch.bool)
