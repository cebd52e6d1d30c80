"""Strategies with a mask over all edges for every mutant, which differ in where it comes from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from deltacell.arrays import AnyArray
from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, State
from deltacell.propagate.ladder.graphs import (
    Incidence,
    Link,
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


def unmasked_wild_type(hops: Sequence[Hop], state: State) -> WildType:
    """Propagate the wild type along all edges."""
    edges: dict[Link, Edges] = {}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        link = Link(a.matrix, target, a.source)
        if link not in edges:
            edges[link] = Edges.of(link, 1, x)
        total = edges[link].total(x, None)
        return total / edges[link].counts(None, total) if a.mean else total

    return wild_type_of(hops, state, receive)


def masked_mutants(
    hops: Sequence[Hop],
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    masks: Sequence[torch.Tensor],
    *,
    vectors: bool,
) -> Mutants:
    """Propagate mutants along the edges that their masks keep.

    Parameters
    ----------
    hops, wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    masks
        Bool [b, n_edges], one a link of the hops.
    """
    kept = dict(zip(links_of(hops), masks, strict=True))
    edges: dict[Link, Edges] = {}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        link = Link(a.matrix, target, a.source)
        if link not in edges:
            edges[link] = Edges.of(link, len(deleted), x)
        mask = kept[link].flatten()
        total = edges[link].total(x, mask)
        return total / edges[link].counts(mask, total) if a.mean else total

    return mutants_of(hops, wild_type, deleted, readout, receive, vectors=vectors)


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


class DeviceMask:
    """Edge masks without making, sending or storing any.

    One mask a relation lies on the device, all true, as long as the largest batch so far. The index
    from genes to edges lies there too, so that the bits of a whole batch are cleared with one
    indexed write from its list of genes, and set again after. The loader is free at last, and the
    step costs what it did: a message along every edge for every mutant.

    Not for several threads at a time: the masks are shared.
    """

    def __init__(self) -> None:
        self._masks: dict[tuple[Link, torch.device], torch.Tensor] = {}

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: everything is found on the device."""
        return deleted

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
        """Propagate the batch as one graph, edge by edge, with the masks of the device."""
        changed: dict[Link, _Changed] = {}

        def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
            link = Link(a.matrix, target, a.source)
            if link not in changed:
                mask = self._all_true(link, len(deleted), x.device)
                edges = Edges.of(link, len(deleted), x)
                changed[link] = _Changed(edges, mask, _removed(link, deleted, x.device))
            total = cast(torch.Tensor, _MaskedTotal.apply(x, changed[link]))  # type: ignore[no-untyped-call]
            return total / changed[link].counts(total) if a.mean else total

        return mutants_of(hops, wild_type, deleted, readout, receive, vectors=vectors)

    def _all_true(self, link: Link, batch: int, device: torch.device) -> torch.Tensor:
        needed = batch * link.n_edges
        kept = self._masks.get((link, device))
        if kept is None or len(kept) < needed:
            kept = torch.ones(needed, dtype=torch.bool, device=device)
            self._masks[link, device] = kept
        return kept[:needed]


class _Changed:
    """The edges of a link for one batch, with the mask that is lent to it."""

    def __init__(self, edges: Edges, mask: torch.Tensor, removed: torch.Tensor) -> None:
        self.edges = edges
        self._mask = mask
        self._removed = removed

    @contextmanager
    def mask(self) -> Iterator[torch.Tensor]:
        """Give the mask with the batch's bits cleared, and set them again after."""
        self._mask[self._removed] = False
        try:
            yield self._mask
        finally:
            self._mask[self._removed] = True

    def counts(self, like: torch.Tensor) -> torch.Tensor:
        """Return the number of edges at each target that are left, at least 1."""
        with self.mask() as mask:
            return self.edges.counts(mask, like.detach())


class _MaskedTotal(torch.autograd.Function):
    """`Edges.total` with a mask that is only lent, so the backward changes it once more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, changed: _Changed) -> torch.Tensor:
        ctx.changed, ctx.n_sources, ctx.dtype = changed, len(x), x.dtype
        with changed.mask() as mask:
            return changed.edges.total(x, mask)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        edges: Edges = ctx.changed.edges
        with ctx.changed.mask() as mask:
            found = gathered(
                gradient, edges.targets, edges.sources, edges.values, mask, ctx.n_sources
            )
        return found.to(ctx.dtype), None


def _removed(link: Link, deleted: Deleted, device: torch.device) -> torch.Tensor:
    """Return the removed edges' places in the mask of the whole batch, some perhaps twice."""
    found = [torch.zeros(0, dtype=torch.int64, device=device)]
    for kind, index in Incidence.of(link, device).items():
        if kind in deleted.nodes:
            lost = deleted.nodes[kind]
            positions, which = index.of_nodes(lost.nodes)
            found.append(lost.owner[which] * link.n_edges + positions)
    return torch.cat(found)


class Stored(ABC):
    """A strategy with something about every genotype's edges in a store.

    Parameters
    ----------
    name
        What the strategy is called in configurations.
    kind
        What its store is called.
    store, genotypes
        See the strategies.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        store: str | os.PathLike[str] | None,
        genotypes: Genotypes | None,
    ) -> None:
        self._name = name
        self._genotypes = genotypes
        self._checked: str | None = None
        purpose = f"the propagation '{name}'"
        lmdb_for(purpose)
        self._store = None if store is None else IndexStore(store, kind, purpose)

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return self._name

    def fill(self, hops: Sequence[Hop], deleted: Deleted, *, overwrite: bool = False) -> None:
        """Make the store, all of it or nothing.

        Parameters
        ----------
        hops
            Those of the model that will use it.
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
