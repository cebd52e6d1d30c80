"""One gene network: a sparse matrix whose row is the target and whose column is the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from deltacell.base.arrays import (
    AnyArray,
    Bools,
    Floats,
    Indices,
    Ints,
    column_of,
    distinct,
    offsets_of,
)
from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import JsonObject
from deltacell.storage.provenance import Counts


class Edges(NamedTuple):
    """Edges as three columns of equal length."""

    source: Ints
    target: Ints
    weight: Floats

    def where(self, is_kept: Bools) -> Edges:
        """Return the edges where a mask is true."""
        return Edges(self.source[is_kept], self.target[is_kept], self.weight[is_kept])

    def in_both_directions(self) -> Edges:
        """Return the edges, followed by the same edges reversed."""
        return Edges(
            np.concatenate([self.source, self.target]),
            np.concatenate([self.target, self.source]),
            np.concatenate([self.weight, self.weight]),
        )

    def reversed(self) -> Edges:
        """Return the edges with source and target swapped."""
        return Edges(self.target, self.source, self.weight)


@dataclass(eq=False, repr=False)
class Relation:
    """A named gene network in compressed sparse rows, ``A[target, source] = weight``.

    An undirected relation is symmetric: an edge has two entries. Within a row the sources ascend;
    there are no self loops and no duplicates.
    """

    name: str
    indptr: Ints
    indices: Indices
    weights: Floats
    _: KW_ONLY
    directed: bool
    counts: Counts = None  # type: ignore[assignment]  # what became of the rows it was made from

    def __post_init__(self) -> None:
        self.counts = self.counts or Counts(self.n_edges, self.n_edges)

    @classmethod
    def from_edges(
        cls,
        name: str,
        source: ArrayLike,
        target: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        n_genes: int,
        directed: bool,
    ) -> Relation:
        """Make a relation from gene indices and, if given, one weight per edge instead of 1.

        Self loops are dropped. Edges given more than once keep their largest weight; in an
        undirected relation the two directions are the same edge. Both are counted in `counts`.
        """
        edges = _checked_edges(name, source, target, weight, n_genes)
        is_loop = edges.source == edges.target
        edges = edges.where(~is_loop)
        kept = _largest_of_each(edges, n_genes, directed=directed)
        n_written = len(edges.source)
        n_kept = len(kept.source)
        n_repeats = n_written - len(distinct(edges.source * n_genes + edges.target)[0])
        dropped = {
            "self loop": int(is_loop.sum()),
            "duplicate": n_repeats,
            "other direction of an edge": n_written - n_kept - n_repeats,
        }
        counts = Counts(len(is_loop), n_kept, dropped)
        entries = kept if directed else kept.in_both_directions()
        return cls(name, *_compress(entries, n_genes), directed=directed, counts=counts)

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell, connected or not."""
        return len(self.indptr) - 1

    @property
    def n_entries(self) -> int:
        """Number of entries of the matrix; an undirected edge has two."""
        return len(self.indices)

    @property
    def n_edges(self) -> int:
        """Number of edges; an undirected one counts once."""
        return self.n_entries if self.directed else self.n_entries // 2

    @cached_property
    def n_connected(self) -> int:
        """Number of genes that have an edge, in or out."""
        has_edge = (self.in_degree > 0) | (self.out_degree > 0)
        return int(has_edge.sum())

    def stats(self) -> JsonObject:
        """Return its sizes as a JSON-serialisable dict."""
        degree = np.maximum(self.in_degree, self.out_degree)
        return {
            "directed": self.directed,
            "genes_with_an_edge": self.n_connected,
            "edges": self.n_edges,
            "max_degree": int(degree.max(initial=0)),
            "counts": self.counts.to_json(),
        }

    @property
    def in_degree(self) -> Ints:
        """The number of edges that end in each gene, [genes]."""
        return np.diff(self.indptr)

    @property
    def out_degree(self) -> Ints:
        """The number of edges that begin in each gene, [genes]."""
        return np.diff(self.transpose.indptr)

    @cached_property
    def transpose(self) -> Relation:
        """The relation with every edge reversed; itself if undirected."""
        if not self.directed:
            return self
        rows = _compress(self.entries().reversed(), self.n_genes)
        transposed = Relation(self.name, *rows, directed=True, counts=self.counts)
        transposed.__dict__["transpose"] = self
        return transposed

    def entries(self) -> Edges:
        """Return all entries, with both directions of undirected edges, ordered by target."""
        target = np.repeat(np.arange(self.n_genes, dtype=np.int64), np.diff(self.indptr))
        return Edges(self.indices.astype(np.int64), target, self.weights)

    def adjacency(self) -> csr_array:
        """Return the entries as a matrix of ones, [genes, genes]."""
        ones = np.ones(self.n_entries)
        return csr_array((ones, self.indices, self.indptr), shape=(self.n_genes, self.n_genes))

    def edges(self) -> Edges:
        """Return every edge once; the source of an undirected edge is the smaller gene."""
        entries = self.entries()
        is_first = np.full(self.n_entries, self.directed) | (entries.source < entries.target)
        return entries.where(is_first)

    def take(self, genes: Ints) -> Relation:
        """Return the relation among the given genes, renumbered in their order."""
        new_index = np.full(self.n_genes, -1, dtype=np.int64)
        new_index[genes] = np.arange(len(genes))
        edges = self.edges()
        source = new_index[edges.source]
        target = new_index[edges.target]
        is_inside = (source >= 0) & (target >= 0)
        inside = Edges(source, target, edges.weight).where(is_inside)
        taken = Relation.from_edges(self.name, *inside, n_genes=len(genes), directed=self.directed)
        left_out = {"outside the genes taken": int((~is_inside).sum())}
        dropped = Counter(self.counts.dropped) + Counter(left_out)
        taken.counts = Counts(self.counts.read, taken.n_edges, dropped)
        return taken

    def equals(self, other: Relation) -> bool:
        """Return whether both have the same name, direction, edges and weights."""
        return (self.name, self.directed) == (other.name, other.directed) and all(
            np.array_equal(getattr(self, part), getattr(other, part))
            for part in ("indptr", "indices", "weights")
        )

    def __repr__(self) -> str:
        way = "directed" if self.directed else "undirected"
        return f"Relation({self.name!r}, {way}, {self.n_edges:,} edges, {self.n_connected:,} genes)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its arrays as tables."""
        entries = pa.table({"indices": self.indices, "weights": self.weights})
        return {"rows": pa.table({"indptr": self.indptr}), "entries": entries}

    @classmethod
    def from_arrow(
        cls,
        tables: Mapping[str, pa.Table],
        name: str,
        *,
        directed: bool,
        counts: Counts,
    ) -> Relation:
        """Return the relation of tables that `to_arrow` made; inconsistent ones raise."""
        indptr = column_of(tables["rows"], "indptr")
        indices = column_of(tables["entries"], "indices")
        weights = column_of(tables["entries"], "weights")
        check_rows(f"relation '{name}'", indptr, indices, len(indptr) - 1)
        return cls(name, indptr, indices, weights, directed=directed, counts=counts)


def check_rows(name: str, indptr: AnyArray, indices: AnyArray, n_columns: int) -> None:
    """Raise if sparse rows from disk are inconsistent, since sparse products do not check them."""
    fits = len(indptr) and indptr[0] == 0 and indptr[-1] == len(indices)
    is_inside = not len(indices) or 0 <= indices.min() <= indices.max() < n_columns
    if not fits or not is_inside or (np.diff(indptr) < 0).any():
        raise StoreError(f"{name}: the rows and entries are inconsistent", code="damaged")


def _checked_edges(
    name: str, source: ArrayLike, target: ArrayLike, weight: ArrayLike | None, n_genes: int
) -> Edges:
    """Return edges as arrays, with weights of 1 by default; raise if they do not fit."""
    sources = np.asarray(source, dtype=np.int64).ravel()
    targets = np.asarray(target, dtype=np.int64).ravel()
    weights = np.ones(len(sources), dtype=np.float32)
    if weight is not None:
        weights = np.asarray(weight, dtype=np.float32).ravel()
    genes = np.concatenate([sources, targets])
    is_inside = not len(genes) or 0 <= genes.min() <= genes.max() < n_genes
    has_equal_lengths = len(sources) == len(targets) == len(weights)
    if not is_inside or not has_equal_lengths or not np.isfinite(weights).all():
        message = f"relation '{name}': edges need two gene indices below {n_genes}, finite weights"
        raise InputError(message, code="bad-edges")
    return Edges(sources, targets, weights)


def _largest_of_each(edges: Edges, n_genes: int, *, directed: bool) -> Edges:
    """Return each edge once with its largest weight, ordered by target and then source.

    The target of an undirected edge is the smaller gene.
    """
    if directed:
        row, column = edges.target, edges.source
    else:
        row = np.minimum(edges.source, edges.target)
        column = np.maximum(edges.source, edges.target)
    key = row * n_genes + column
    order = np.argsort(key)
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    weight = edges.weight
    if len(key):
        weight = np.maximum.reduceat(weight[order], starts)
    return Edges(source=key[starts] % n_genes, target=key[starts] // n_genes, weight=weight)


class _SparseRows(NamedTuple):
    """Compressed sparse rows."""

    indptr: Ints
    indices: Indices
    weights: Floats


def _compress(entries: Edges, n_genes: int) -> _SparseRows:
    """Return the rows of the matrix ``A[target, source] = weight``."""
    order = np.argsort(entries.target * n_genes + entries.source)
    indptr = offsets_of(np.bincount(entries.target, minlength=n_genes))
    return _SparseRows(indptr, entries.source[order].astype(np.int32), entries.weight[order])
