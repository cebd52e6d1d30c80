"""The index from a node to the positions of its edges."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell.arrays import offsets_of
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.ladder.link import Link
from deltacell.propagate.product import SparseMatrix


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which edges of a link touch each node of one kind, as a target or as a source.

    Parameters
    ----------
    offsets
        Where each node's positions begin, and the end, int64 [n + 1].
    positions
        Of the edges, node after node, int64.
    """

    offsets: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(cls, link: Link, device: torch.device | str = "cpu") -> dict[str, Incidence]:
        """Return the index of each kind of node of a link; kept for the next call."""
        kept = _OF_MATRIX.setdefault(link.matrix, {})
        key = (link.target, link.source, torch.device(device))
        if key not in kept:
            made = {kind: cls._made(link, kind) for kind in (link.target, link.source)}
            kept[key] = {
                kind: cls(index.offsets.to(device), index.positions.to(device))
                for kind, index in made.items()
            }
        return kept[key]

    @classmethod
    def _made(cls, link: Link, kind: str) -> Incidence:
        matrix = link.matrix
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        ends = [row] if link.target == kind else []
        if link.source == kind:
            ends.append(matrix.indices.astype(np.int64))
        node = np.concatenate(ends)
        order = np.argsort(node, kind="stable")
        n_nodes = matrix.shape[0] if link.target == kind else matrix.shape[1]
        return cls(
            torch.from_numpy(offsets_of(np.bincount(node, minlength=n_nodes))),
            torch.from_numpy(order % max(matrix.n_entries, 1)),
        )

    def of_node(self, node: int) -> torch.Tensor:
        """Return the positions of one node's edges."""
        return self.positions[self.offsets[node] : self.offsets[node + 1]]

    def of_nodes(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of many nodes' edges, and which of the nodes each belongs to."""
        starts, lengths = self.offsets[nodes], self.offsets[nodes + 1] - self.offsets[nodes]
        which = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), lengths)
        before = lengths.cumsum(0) - lengths
        at = torch.arange(len(which), device=nodes.device) - before[which] + starts[which]
        return self.positions[at], which


def removed_edges(link: Link, deleted: Deleted, genotype: int) -> torch.Tensor:
    """Return the positions of the edges that a genotype removes, ascending, each once.

    Parameters
    ----------
    link
        The matrix.
    deleted
        What a batch deletes, on the host.
    genotype
        Which of the batch.
    """
    found = [torch.zeros(0, dtype=torch.int64)]
    for kind, index in Incidence.of(link).items():
        if kind in deleted.nodes:
            lost = deleted.nodes[kind]
            begin, end = lost.starts[genotype], lost.starts[genotype + 1]
            found.extend(index.of_node(node) for node in lost.nodes[begin:end].tolist())
    return torch.from_numpy(np.unique(torch.cat(found).numpy()))


_Kept = dict[tuple[str, str, torch.device], dict[str, Incidence]]
_OF_MATRIX: WeakKeyDictionary[SparseMatrix, _Kept] = WeakKeyDictionary()
