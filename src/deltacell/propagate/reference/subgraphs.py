"""The strategy that cuts the graph of every mutant out of the cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.reference.edge_masks import mask_of
from deltacell.propagate.reference.edges import EdgeStrategy, Link, MutantEdges, edges_of_batch


class Subgraph(EdgeStrategy):
    """The subgraph that the living nodes induce, cut out of the cell for every genotype.

    This is how a PyG user would implement the definition; the subgraphs of a batch are collated.
    """

    name: ClassVar[str] = "subgraph"
    passes: ClassVar[Messages] = Messages.graph_per_mutant

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Return the sources, the targets and any weights of the remaining edges."""
        return [_remaining_edges(link, deleted) for link in links]

    def edges(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> MutantEdges:
        """Return the edges that were sent."""
        sources, targets, *weights = sent
        return MutantEdges(sources, targets, weights[0] if weights else None)


def _remaining_edges(link: Link, deleted: Deleted) -> tuple[Tensor, ...]:
    is_kept = mask_of(link, deleted).flatten()
    edges = edges_of_batch(link, len(deleted), is_kept.device)
    columns = [edges.sources[is_kept], edges.targets[is_kept]]
    if edges.weights is not None:
        columns.append(edges.weights[is_kept])
    return tuple(columns)
