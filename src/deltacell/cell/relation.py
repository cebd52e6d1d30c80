"""One gene network: a sparse matrix whose row is the target and whose column is the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from deltacell.base.arrays import AnyArray, Floats, Indices, Ints, column_of, distinct, offsets_of
from deltacell.base.errors import InputError, StoreError
from deltacell.storage.provenance import Counts


class Edges(NamedTuple):
    """Edges as three columns of equal length."""

    source: Ints
    target: Ints
    weight: Floats


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
        source: Any,
        target: Any,
        weight: Any = None,
        *,
        n_genes: int,
        directed: bool,
    ) -> Relation:
        """Make a relation from gene indices and, if given, one weight per edge instead of 1.

        Self loops are dropped. Edges given more than once keep their largest weight; in an
        undirected relation the two directions are the same edge. Both are counted in `counts`.
        """
        source = np.asarray(source, dtype=np.int64).ravel()
        target = np.asarray(target, dtype=np.int64).ravel()
        weight = np.ones(len(source)) if weight is None else weight
        given: Floats = np.asarray(weight, dtype=np.float32).ravel()
        genes = np.concatenate([source, target])
        inside = not len(genes) or 0 <= genes.min() <= genes.max() < n_genes
        fits = len(source) == len(target) == len(given) and np.isfinite(given).all()
        if not inside or not fits:
            what = f"relation '{name}': edges need two gene indices below {n_genes}, finite weights"
            raise InputError(what, code="bad-edges")
        loop = source == target
        source, target, given = source[~loop], target[~loop], given[~loop]
        low, high = target, source
        if not directed:
            low, high = np.minimum(source, target), np.maximum(source, target)
        key = low * n_genes + high
        order = np.argsort(key)
        key = key[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        kept = np.maximum.reduceat(given[order], starts) if len(key) else given
        low, high = key[starts] // n_genes, key[starts] % n_genes
        written_twice = len(source) - len(distinct(source * n_genes + target)[0])
        dropped = {
            "self loop": int(loop.sum()),
            "duplicate": written_twice,
            "other direction of an edge": len(source) - len(low) - written_twice,
        }
        counts = Counts(len(loop), len(low), dropped)
        if not directed:
            low, high = np.concatenate([low, high]), np.concatenate([high, low])
            kept = np.concatenate([kept, kept])
        return cls(name, *_compress(low, high, kept, n_genes), directed=directed, counts=counts)

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell, connected or not."""
        return len(self.indptr) - 1

    @property
    def n_entries(self) -> int:
        return len(self.indices)

    @property
    def n_edges(self) -> int:
        """Number of edges; an undirected one counts once."""
        return self.n_entries if self.directed else self.n_entries // 2

    @cached_property
    def n_connected(self) -> int:
        """Number of genes that have an edge, in or out."""
        return int(((self.in_degree > 0) | (self.out_degree > 0)).sum())

    @property
    def in_degree(self) -> Ints:
        return np.diff(self.indptr)

    @property
    def out_degree(self) -> Ints:
        return np.diff(self.transpose.indptr)

    @cached_property
    def transpose(self) -> Relation:
        """The relation with every edge reversed; itself if undirected."""
        if not self.directed:
            return self
        source, target, weight = self.entries()
        rows = _compress(source, target, weight, self.n_genes)
        turned = Relation(self.name, *rows, directed=True, counts=self.counts)
        turned.__dict__["transpose"] = self
        return turned

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
        source, target, weight = self.entries()
        once = np.full(len(source), self.directed) | (source < target)
        return Edges(source[once], target[once], weight[once])

    def take(self, genes: Ints) -> Relation:
        """Return the relation among the given genes, renumbered in their order."""
        new_index = np.full(self.n_genes, -1, dtype=np.int64)
        new_index[genes] = np.arange(len(genes))
        source, target, weight = self.edges()
        source, target = new_index[source], new_index[target]
        inside = (source >= 0) & (target >= 0)
        edges = source[inside], target[inside], weight[inside]
        taken = Relation.from_edges(self.name, *edges, n_genes=len(genes), directed=self.directed)
        counts, left_out = self.counts, {"outside the genes taken": int((~inside).sum())}
        dropped = Counter(counts.dropped) + Counter(left_out)
        taken.counts = Counts(counts.read, taken.n_edges, dropped)
        return taken

    def equals(self, other: Relation) -> bool:
        return (self.name, self.directed) == (other.name, other.directed) and all(
            np.array_equal(getattr(self, part), getattr(other, part))
            for part in ("indptr", "indices", "weights")
        )

    def __repr__(self) -> str:
        way = "directed" if self.directed else "undirected"
        return f"Relation({self.name!r}, {way}, {self.n_edges:,} edges, {self.n_connected:,} genes)"

    def to_arrow(self) -> dict[str, pa.Table]:
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
        indptr = column_of(tables["rows"], "indptr")
        indices, weights = (column_of(tables["entries"], c) for c in ("indices", "weights"))
        check_rows(f"relation '{name}'", indptr, indices, len(indptr) - 1)
        return cls(name, indptr, indices, weights, directed=directed, counts=counts)


def check_rows(what: str, indptr: AnyArray, indices: AnyArray, n_columns: int) -> None:
    """Raise if sparse rows from disk are inconsistent, since sparse products do not check them."""
    fits = len(indptr) and indptr[0] == 0 and indptr[-1] == len(indices)
    inside = not len(indices) or 0 <= indices.min() <= indices.max() < n_columns
    if not fits or not inside or (np.diff(indptr) < 0).any():
        raise StoreError(f"{what}: the rows and entries are inconsistent", code="damaged")


def _compress(row: Ints, column: Ints, weight: Floats, n: int) -> tuple[Ints, Indices, Floats]:
    order = np.argsort(row * n + column)
    indptr = offsets_of(np.bincount(row, minlength=n))
    return indptr, column[order].astype(np.int32), weight[order]
