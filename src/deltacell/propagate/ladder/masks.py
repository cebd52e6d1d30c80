"""Strategies with a mask over all edges for every mutant, which differ in where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell.arrays import offsets_of
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, Readout, State
from deltacell.propagate.ladder.subgraph import (
    Link,
    Receive,
    links_of,
    not_prepared,
    propagate,
    read_out,
)
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Deleted, Mutants, WildType

Masks = Sequence[torch.Tensor]
"""Which edges each mutant has, bool [b, n_edges], one per link."""


@dataclass(frozen=True, eq=False)
class Sent(Deleted):
    """A batch with what its loader sends about the edges, so many tensors per link."""

    tensors: tuple[torch.Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of the tensors and of the genes per genotype."""
        sent = sum(x.nbytes for x in self.tensors)
        return (sent + self.genotypes.nbytes) / max(len(self), 1)


class Masked:
    """Messages along every edge of the cell, each multiplied by its bit.

    No graph per mutant, but a bit per edge: that saves the cutting and the copies of the edges.
    What it does not save is the work: every mutant still gathers a message along each edge, those
    that are gone included, and writes it to memory twice, before and after the mask. The rungs
    differ in where the mask comes from: what `prepare` finds on the host, and what `masks` makes of
    it in the step.
    """

    name: ClassVar[str]

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch."""
        raise NotImplementedError

    def masks(self, links: Sequence[Link], deleted: Deleted, device: torch.device) -> Masks:
        """Return the masks in the step: here those that were sent."""
        return self.sent(deleted)

    def sent(self, deleted: Deleted) -> tuple[torch.Tensor, ...]:
        """Return what was sent, or raise where another strategy prepared the batch."""
        if not isinstance(deleted, Sent):
            raise not_prepared(self.name)
        return deleted.tensors

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, edge by edge."""
        receive = _along_edges(links_of(hops), 1, None)
        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the batch as one graph, edge by edge, with the masks.

        Node i of mutant b is row ``b * n + i``. Deleted nodes are there too; no message reaches or
        leaves them, and nothing reads them.
        """
        batch, first, links = len(deleted), wild_type.first, links_of(hops)
        masks = self.masks(links, deleted, first[GENE].device)
        rows = {k: torch.arange(len(x), device=x.device).repeat(batch) for k, x in first.items()}
        state = {kind: x.repeat(batch, 1) for kind, x in first.items()}
        genes = propagate(hops, state, rows, _along_edges(links, batch, masks))[-1][GENE]
        owner = torch.arange(batch, device=genes.device).repeat_interleave(len(first[GENE]))
        return read_out(genes, rows[GENE], owner, wild_type, deleted, readout, vectors=vectors)


def _along_edges(links: Sequence[Link], batch: int, masks: Masks | None) -> Receive:
    """Return the sum or mean of messages along the edges that the masks keep."""
    number = {link: i for i, link in enumerate(links)}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        rows, columns, values = a.matrix.entries(device=x.device, dtype=x.dtype)
        mutant = torch.arange(batch, device=x.device).unsqueeze(1)
        sources = (columns + mutant * a.matrix.shape[1]).flatten()
        targets = (rows + mutant * a.matrix.shape[0]).flatten()
        messages = x.index_select(0, sources)
        if a.matrix.values is not None:
            messages = messages * values.repeat(batch).unsqueeze(1)
        kept = torch.ones_like(targets, dtype=torch.bool)
        if masks is not None:
            kept = masks[number[Link(a.matrix, target, a.source)]].flatten()
            messages = messages * kept.unsqueeze(1)
        n_targets = batch * a.matrix.shape[0]
        # Not index_add, which would keep the messages of every layer for a backward without need.
        at = targets.unsqueeze(1).expand_as(messages)
        total = messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)
        if not a.mean:
            return total
        counts = x.new_zeros(n_targets).index_add(0, targets, kept.to(x.dtype))
        return total / counts.clamp(min=1).unsqueeze(1)

    return receive


def removed_edges(
    link: Link, deleted: Deleted, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges that genotypes remove and whose each is; one may be there twice.

    An edge's position is its place among the entries of the matrix, row by row.
    """
    positions, owners = [], []
    for kind in dict.fromkeys((link.target, link.source)):
        if (lost := deleted.nodes.get(kind)) is not None:
            offsets, edges = _edges_of_nodes(link, kind, torch.device(device))
            starts, lengths = offsets[lost.nodes], offsets.diff()[lost.nodes]
            which = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            within = torch.arange(len(which), device=device) - (lengths.cumsum(0) - lengths)[which]
            positions.append(edges[starts[which] + within])
            owners.append(lost.owner[which])
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return torch.cat([none, *positions]), torch.cat([none, *owners])


def _edges_of_nodes(
    link: Link, kind: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index from each node of a kind to its edges, as offsets and positions."""
    kept = _INDEX.setdefault(link.matrix, {})
    key = (link.target, link.source, kind, device)
    if key not in kept:
        rows, columns, _ = link.matrix.entries(device="cpu", dtype=torch.float32)
        ends = [e for e, k in ((rows, link.target), (columns, link.source)) if k == kind]
        node = torch.cat(ends).numpy()
        order = np.argsort(node, kind="stable") % max(link.matrix.n_entries, 1)
        n_nodes = link.matrix.shape[0 if link.target == kind else 1]
        offsets = offsets_of(np.bincount(node, minlength=n_nodes))
        kept[key] = torch.from_numpy(offsets).to(device), torch.from_numpy(order).to(device)
    return kept[key]


_INDEX: WeakKeyDictionary[
    SparseMatrix, dict[tuple[str, str, str, torch.device], tuple[torch.Tensor, torch.Tensor]]
] = WeakKeyDictionary()


def masks_of(
    links: Sequence[Link], deleted: Deleted, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Return the masks of a batch, made on the device that the deleted nodes are on."""
    masks = []
    for link in links:
        mask = torch.ones(len(deleted), link.matrix.n_entries, dtype=torch.bool, device=device)
        positions, owner = removed_edges(link, deleted, device)
        mask[owner, positions] = False
        masks.append(mask)
    return tuple(masks)


class EdgeMask(Masked):
    """Masks that the loader makes, by an index from every gene to the positions of its edges."""

    name = "edge_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        """Make the masks."""
        return Sent(deleted.genotypes, deleted.nodes, masks_of(links_of(hops), deleted))


class DeviceMask(Masked):
    """Masks that are made on the device, in the step.

    The index from genes to edges lies on the device, so that the bits of a whole batch are cleared
    with one indexed write from its list of genes. The loader is free at last, and the step costs
    what it did.
    """

    name = "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: everything is found on the device."""
        return deleted

    def masks(self, links: Sequence[Link], deleted: Deleted, device: torch.device) -> Masks:
        """Make the masks on the device."""
        return masks_of(links, deleted, device)
