"""Strategies with a mask over all edges for every mutant, which differ in where it comes from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
import torch

from deltacell.arrays import AnyArray
from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, State
from deltacell.propagate.ladder.graphs import (
    Incidence,
    Link,
    Receive,
    links_of,
    mutants_of,
    not_prepared,
    removed_edges,
    wild_type_of,
)
from deltacell.propagate.ladder.index_store import IndexStore, checksum_of_links, lmdb_for
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType
from deltacell.screen import Genotypes


@dataclass(frozen=True, eq=False)
class Masks(Deleted):
    """A batch with its edge masks, which is what its loader sends.

    Parameters
    ----------
    masks
        Which edges each mutant has, bool [b, n_edges], one a link.
    """

    masks: tuple[torch.Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of masks and genes a genotype."""
        masks = sum(m.nbytes for m in self.masks)
        return (masks + self.genotypes.nbytes) / max(len(self), 1)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a link in b mutants that lie one after the other along the rows.

    Parameters
    ----------
    sources, targets
        Rows of the edges' ends, int64 [b * n_edges].
    values
        One number an edge, [b * n_edges, 1], or None for 1.
    n_targets
        Number of rows of all targets.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    values: torch.Tensor | None
    n_targets: int

    @classmethod
    def of(cls, link: Link, batch: int, like: torch.Tensor) -> Edges:
        """Make them for a batch, on the device of a tensor and in its type, float32 at least."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        rows, columns, values = link.matrix.entries(device=like.device, dtype=dtype)
        mutant = torch.arange(batch, device=like.device).unsqueeze(1)
        n_targets, n_sources = link.matrix.shape
        return cls(
            (columns + mutant * n_sources).flatten(),
            (rows + mutant * n_targets).flatten(),
            None if link.matrix.values is None else values.repeat(batch).unsqueeze(1),
            batch * n_targets,
        )

    def total(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of messages at each target, [n_targets, hidden].

        ``y[i] = sum over edges e into i of mask[e] values[e] x[source of e]``.

        Parameters
        ----------
        x
            Of all sources, [n_sources, hidden].
        mask
            Bool [b * n_edges]; None keeps all.
        """
        return gathered(x, self.sources, self.targets, self.values, mask, self.n_targets)

    def counts(self, mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """Return the number of edges at each target that the mask keeps, at least 1."""
        kept = torch.ones_like(self.targets) if mask is None else mask
        none = like.new_zeros(self.n_targets)
        return none.index_add(0, self.targets, kept.to(like.dtype)).clamp(min=1).unsqueeze(1)


def gathered(
    x: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    values: torch.Tensor | None,
    mask: torch.Tensor | None,
    n_targets: int,
) -> torch.Tensor:
    """Return the messages of x [m, hidden] along edges, masked and added up at their targets."""
    messages = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, sources)
    if values is not None:
        messages = messages * values
    if mask is not None:
        messages = messages * mask.unsqueeze(1)
    # Not index_add, which would keep the messages of every layer for a backward without need.
    at = targets.unsqueeze(1).expand_as(messages)
    return messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)


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


Prepared = TypeVar("Prepared", bound=Deleted)


class _Masked(ABC):
    """Messages along every edge of the cell, each multiplied by its bit.

    No graph per mutant, but a bit per edge: that saves the cutting and the copies of the edges.
    What it does not save is the work: every mutant still gathers a message along each edge, those
    that are gone included, and writes it to memory twice, before and after the mask. The rungs
    differ in where the mask comes from.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in configurations."""

    @abstractmethod
    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch."""

    @abstractmethod
    def _masks(
        self, links: Sequence[Link], deleted: Deleted, device: torch.device
    ) -> Sequence[torch.Tensor]:
        """Return the masks in the step, bool [b, n_edges], one per link."""

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, edge by edge."""
        return wild_type_of(hops, state, _along_edges(1, None))

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
        links = links_of(hops)
        found = self._masks(links, deleted, wild_type.first[GENE].device)
        masks = dict(zip(links, found, strict=True))
        receive = _along_edges(len(deleted), masks)
        return mutants_of(hops, wild_type, deleted, readout, receive, vectors=vectors)

    def _prepared(self, deleted: Deleted, kind: type[Prepared]) -> Prepared:
        if not isinstance(deleted, kind):
            raise not_prepared(self.name)
        return deleted


def _along_edges(batch: int, masks: Mapping[Link, torch.Tensor] | None) -> Receive:
    edges: dict[Link, Edges] = {}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        link = Link(a.matrix, target, a.source)
        if link not in edges:
            edges[link] = Edges.of(link, batch, x)
        mask = None if masks is None else masks[link].flatten()
        total = edges[link].total(x, mask)
        return total / edges[link].counts(mask, total) if a.mean else total

    return receive


class EdgeMask(_Masked):
    """Masks that the loader makes, by an index from every gene to the positions of its edges."""

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

    def _masks(
        self, links: Sequence[Link], deleted: Deleted, device: torch.device
    ) -> Sequence[torch.Tensor]:
        return self._prepared(deleted, Masks).masks


class DeviceMask(_Masked):
    """Masks that are made on the device, in the step.

    The index from genes to edges lies on the device, so that the bits of a whole batch are cleared
    with one indexed write from its list of genes. The loader is free at last, and the step costs
    what it did.
    """

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: everything is found on the device."""
        return deleted

    def _masks(
        self, links: Sequence[Link], deleted: Deleted, device: torch.device
    ) -> Sequence[torch.Tensor]:
        masks = []
        for link in links:
            mask = torch.ones(len(deleted), link.n_edges, dtype=torch.bool, device=device)
            for kind, index in Incidence.of(link, device).items():
                if kind in deleted.nodes:
                    lost = deleted.nodes[kind]
                    positions, which = index.of_nodes(lost.nodes)
                    mask[lost.owner[which], positions] = False
            masks.append(mask)
        return masks


class Stored(_Masked):
    """Something about every genotype's edges in LMDB, made ahead.

    It takes a store that has to be made for every screen and thrown away with every change of the
    cell.

    Parameters
    ----------
    store
        The folder; `fill` makes it.
    genotypes
        Those of the whole screen; where they are given, a store that was made for others is
        refused at the first batch.
    """

    kind: ClassVar[str]
    """What its store is called."""

    def __init__(
        self, store: str | os.PathLike[str] | None = None, genotypes: Genotypes | None = None
    ) -> None:
        self._genotypes = genotypes
        self._checked: str | None = None
        purpose = f"the propagation '{self.name}'"
        lmdb_for(purpose)
        self._store = None if store is None else IndexStore(store, self.kind, purpose)

    def fill(self, hops: Sequence[Hop], deleted: Deleted, *, overwrite: bool = False) -> None:
        """Make the store, all of it or nothing.

        Parameters
        ----------
        hops
            Those of the model that will use it, `HeteroCell.mutant_hops`.
        deleted
            What all genotypes of the screen delete, ``Deleted.of(cell, screen.genotypes)``.
        overwrite
            Replace a store of the same kind.
        """
        deleted = deleted.to("cpu")
        self._checked = None
        self._folder.write(
            links_of(hops), deleted, partial(self._array_of, deleted), overwrite=overwrite
        )

    def _read(
        self, hops: Sequence[Hop], deleted: Deleted, dtype: type[np.generic]
    ) -> list[list[torch.Tensor]]:
        links = links_of(hops)
        checksum = checksum_of_links(links)
        if self._checked != checksum:
            self._folder.check(links, self._genotypes)
            self._checked = checksum
        return self._folder.read(links, deleted.genotypes, dtype)

    @property
    def _folder(self) -> IndexStore:
        if self._store is None:
            raise InputError(
                f"the propagation '{self.name}' needs the folder of its store",
                fix=f"Give it one: strategy('{self.name}', store=PATH).",
            )
        return self._store

    @abstractmethod
    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        """Return what is stored of a genotype's edges of one link."""


class StoredEdges(Stored):
    """The positions of each genotype's removed edges in a store, and masks made in the step.

    It spares the loader the look-up, and the step costs what it did.
    """

    kind = "store of removed edges"

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "stored_edges"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> RemovedEdges:
        """Read the removed edges of a batch."""
        read = self._read(hops, deleted, np.int64)
        none = torch.zeros(0, dtype=torch.int64)
        return RemovedEdges(
            deleted.genotypes,
            deleted.nodes,
            tuple(torch.cat([none, *positions]) for positions in read),
            tuple(
                torch.tensor([len(p) for p in positions], dtype=torch.int64) for positions in read
            ),
        )

    def _masks(
        self, links: Sequence[Link], deleted: Deleted, device: torch.device
    ) -> Sequence[torch.Tensor]:
        removed = self._prepared(deleted, RemovedEdges)
        masks = []
        for link, positions, sizes in zip(links, removed.positions, removed.sizes, strict=True):
            mask = torch.ones(len(deleted), link.n_edges, dtype=torch.bool, device=device)
            owner = torch.arange(len(deleted), device=device).repeat_interleave(sizes)
            mask[owner, positions] = False
            masks.append(mask)
        return masks

    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        return removed_edges(link, deleted, genotype).numpy()


class StoredMasks(Stored):
    """The masks themselves in a store: reading them is all that is left to do.

    A byte for every edge of the cell is read from disk and sent for every genotype, and the step
    costs what it did.
    """

    kind = "store of edge masks"

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "stored_masks"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Masks:
        """Read the masks of a batch."""
        read = self._read(hops, deleted, np.bool_)
        none = torch.zeros(0, dtype=torch.bool)
        return Masks(
            deleted.genotypes,
            deleted.nodes,
            tuple(
                torch.cat([none, *masks]).view(len(deleted), link.n_edges)
                for link, masks in zip(links_of(hops), read, strict=True)
            ),
        )

    def _masks(
        self, links: Sequence[Link], deleted: Deleted, device: torch.device
    ) -> Sequence[torch.Tensor]:
        return self._prepared(deleted, Masks).masks

    def _array_of(self, deleted: Deleted, link: Link, genotype: int) -> AnyArray:
        mask = np.ones(link.n_edges, dtype=np.bool_)
        mask[removed_edges(link, deleted, genotype).numpy()] = False
        return mask
