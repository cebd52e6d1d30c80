"""Strategies that keep every edge, with a mask over the edges of each mutant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.reference.edges import (
    EdgeStrategy,
    Link,
    MutantEdges,
    edges_of_batch,
    masked,
)


class EdgeMask(EdgeStrategy):
    """The loader makes the masks, with an index from every gene to the positions of its edges."""

    name: ClassVar[str] = "edge_mask"
    passes: ClassVar[Messages] = Messages.masked_edges

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Return the mask of each link."""
        return [(mask_of(link, deleted),) for link in links]

    def mask(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> Tensor:
        """Return which edges of a link each mutant has, from the tensors that were sent."""
        return sent[0]

    def edges(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> MutantEdges:
        """Return all edges of a link with their mask."""
        mask = self.mask(link, deleted, sent)
        return masked(edges_of_batch(link, len(deleted), mask.device), mask)


class DeviceMask(EdgeMask):
    """The masks are made on the device, by indexed writes from the batch's list of genes."""

    name: ClassVar[str] = "device_mask"

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Return nothing: the list of genes is sent anyway."""
        return [()] * len(links)

    def mask(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> Tensor:
        """Return the mask, made in the step."""
        return mask_of(link, deleted)


def mask_of(link: Link, deleted: Deleted) -> Tensor:
    """Return which edges, the entries of the matrix, each mutant has, bool [b, n_edges]."""
    matrix = link.matrix
    device = deleted.nodes[GENE].nodes.device
    mask = torch.ones(len(deleted), matrix.n_entries, dtype=torch.bool, device=device)
    order = matrix.tensor("transpose_order", device, torch.int64)
    in_place = torch.arange(len(order), device=device)
    _clear(mask, link.target, matrix, in_place, deleted)
    _clear(mask, link.source, matrix.transpose, order, deleted)
    return mask


def _clear(
    mask: Tensor,
    kind: str,
    rows: SparseMatrix,
    position: Tensor,
    deleted: Deleted,
) -> None:
    """Clear the entries of a mask that are in the rows of deleted nodes."""
    lost = deleted.nodes.get(kind)
    if lost is None:
        return
    device = mask.device
    offsets = rows.tensor("indptr", device, torch.int64)
    starts = offsets[lost.nodes]
    lengths = offsets.diff()[lost.nodes]
    # The number of entries is known only on the device, so this waits for it.
    which = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
    within = torch.arange(len(which), device=device) - (lengths.cumsum(0) - lengths)[which]
    mask[lost.owner[which], position[starts[which] + within]] = False
