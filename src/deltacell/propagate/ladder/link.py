"""The matrices that messages pass over, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deltacell.propagate.hop import Hop
from deltacell.propagate.product import SparseMatrix


class Link(NamedTuple):
    """A matrix and the kinds of node that its rows and columns are.

    Its entries are the edges; an edge's position is its place among them, row by row.

    Parameters
    ----------
    matrix
        Row = target, column = source.
    target, source
        The kinds.
    """

    matrix: SparseMatrix
    target: str
    source: str

    @property
    def n_edges(self) -> int:
        """Number of entries: of an undirected relation, both directions."""
        return self.matrix.n_entries


def links_of(hops: Sequence[Hop]) -> tuple[Link, ...]:
    """Return the links of all hops, each once, in the order in which they are first used."""
    links = (Link(a.matrix, hop.target, a.source) for hop in hops for a in hop.aggregates)
    return tuple(dict.fromkeys(links))
