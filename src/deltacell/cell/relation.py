"""One gene network: a sparse matrix whose row is the target and whose column is the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from deltacell.arrays import Floats, Indices, Ints, column_of, distinct, offsets_of
from deltacell.counts import Counts
from deltacell.errors import InputError, StoreError


class Edges(NamedTuple):
    """Edges as three columns of equal length."""

    source: Ints
    target: Ints
    weight: Floats


class Relation:
    """A named gene network in compressed sparse rows, ``A[target, source] = weight``.

    An undirected relation is symmetric: both directions are entries, and one edge.

    Parameters
    ----------
    indptr, indices, weights
        The rows; within a row the sources ascend. No self loops, no duplicates.
    counts
        What became of the rows of the source it was made from.
    """

    def __init__(
        self,
        name: str,
        indptr: Ints,
        indices: Indices,
        weights: Floats,
        *,
        directed: bool,
        counts: Counts | None = None,
    ) -> None:
        self.name = name
        self.indptr = indptr
        self.indices = indices
        self.weights = weights
        self.directed = directed
        self.counts = counts if counts is not None else Counts(self.n_edges, self.n_edges)
        self._tensors: dict[tuple[torch.device, torch.dtype, bool], torch.Tensor] = {}

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
        """Make a relation from a list of edges.

        Self loops are dropped. Of edges given more than once the largest weight is kept; in an
        undirected relation the two directions are the same edge. Both are counted in `counts`.

        Parameters
        ----------
        source, target
            Gene indices.
        weight
            One number per edge; 1 where not given.
        """
        source = np.asarray(source, dtype=np.int64).ravel()
        target = np.asarray(target, dtype=np.int64).ravel()
        weight = np.ones(len(source)) if weight is None else weight
        given: Floats = np.asarray(weight, dtype=np.float32).ravel()
        if not len(source) == len(target) == len(given):
            what = f"has {len(source)} sources, {len(target)} targets and {len(given)} weights"
            raise InputError(f"relation '{name}' {what}", code="bad-shape")
        genes = np.concatenate([source, target])
        outside = (genes < 0) | (genes >= n_genes)
        if outside.any():
            what = f"the gene index {genes[outside][0]} is outside the cell, 0 to {n_genes - 1}"
            raise InputError(f"relation '{name}': {what}", code="gene-index-outside")
        if not np.isfinite(given).all():
            what = f"relation '{name}': an edge weight is not a finite number"
            raise InputError(what, code="not-finite")
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
        rows = _compress(low, high, kept, n_genes)
        return cls(name, *rows, directed=directed, counts=counts)

    @classmethod
    def merge(cls, name: str, relations: Iterable[Relation]) -> Relation:
        """Return the union of several relations, with the largest weight of each edge.

        The union is directed if any of them is.
        """
        relations = list(relations)
        sizes = {r.n_genes for r in relations}
        if len(sizes) != 1:
            what = f"{len(relations)} relations over {sorted(sizes)} genes do not merge"
            raise InputError(f"relation '{name}': {what}", code="bad-merge")
        directed = any(r.directed for r in relations)
        parts = [r.entries() if directed else r.edges() for r in relations]
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls.from_edges(name, *columns, n_genes=sizes.pop(), directed=directed)

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell, connected or not."""
        return len(self.indptr) - 1

    @property
    def n_entries(self) -> int:
        """Number of stored entries: twice the edges where undirected."""
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
        """Number of sources of each gene."""
        return np.diff(self.indptr)

    @property
    def out_degree(self) -> Ints:
        """Number of targets of each gene."""
        return np.diff(self.transpose.indptr)

    @cached_property
    def transpose(self) -> Relation:
        """The relation with every edge reversed; itself where undirected."""
        if not self.directed:
            return self
        source, target, weight = self.entries()
        rows = _compress(source, target, weight, self.n_genes)
        turned = Relation(self.name, *rows, directed=True, counts=self.counts)
        turned.__dict__["transpose"] = self
        return turned

    def entries(self) -> Edges:
        """Return all entries, both directions of undirected edges, ordered by target."""
        target = np.repeat(np.arange(self.n_genes, dtype=np.int64), np.diff(self.indptr))
        return Edges(self.indices.astype(np.int64), target, self.weights)

    def edges(self) -> Edges:
        """Return every edge once; of an undirected one, the smaller gene is the source."""
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
        left_out = {"outside the genes taken": int((~inside).sum())}
        taken.counts = self.counts.then(Counts(self.n_edges, int(inside.sum()), left_out))
        return taken

    def renamed(self, name: str) -> Relation:
        """Return the same relation under another name."""
        rows = self.indptr, self.indices, self.weights
        return Relation(name, *rows, directed=self.directed, counts=self.counts)

    def csr(
        self,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        weighted: bool = False,
    ) -> torch.Tensor:
        """Return the matrix as a sparse CSR tensor [n_genes, n_genes]; kept for the next call.

        Parameters
        ----------
        weighted
            Whether its values are the weights; otherwise ones.
        """
        key = (torch.device(device), dtype, weighted)
        if key not in self._tensors:
            values = self.weights if weighted else np.ones(self.n_entries, dtype=np.float32)
            self._tensors[key] = torch.sparse_csr_tensor(
                torch.from_numpy(np.array(self.indptr)),
                torch.from_numpy(self.indices.astype(np.int64)),
                torch.from_numpy(np.array(values)).to(dtype),
                size=(self.n_genes, self.n_genes),
                check_invariants=False,
            ).to(device)
        return self._tensors[key]

    def equals(self, other: Relation) -> bool:
        """Whether both have the same name, direction, entries and weights."""
        return (self.name, self.directed) == (other.name, other.directed) and all(
            np.array_equal(getattr(self, part), getattr(other, part))
            for part in ("indptr", "indices", "weights")
        )

    def __repr__(self) -> str:
        way = "directed" if self.directed else "undirected"
        return f"Relation({self.name!r}, {way}, {self.n_edges:,} edges, {self.n_connected:,} genes)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: the row pointers and the entries."""
        indices, weights = pa.array(self.indices, pa.int32()), pa.array(self.weights, pa.float32())
        return {
            "rows": pa.table({"indptr": pa.array(self.indptr, pa.int64())}),
            "entries": pa.table({"indices": indices, "weights": weights}),
        }

    @classmethod
    def from_arrow(
        cls, tables: Mapping[str, pa.Table], name: str, *, directed: bool, counts: Counts
    ) -> Relation:
        """Inverse of `to_arrow`; the arrays stay memory-mapped."""
        indptr = column_of(tables["rows"], "indptr")
        indices, weights = (column_of(tables["entries"], c) for c in ("indices", "weights"))
        # A sparse product does not check where an index points, so what comes from disk is checked.
        n_genes = len(indptr) - 1
        whole = n_genes >= 0 and indptr[0] == 0 and indptr[-1] == len(indices)
        if not whole or (np.diff(indptr) < 0).any():
            what = f"relation '{name}': the row pointers do not fit the entries"
            raise StoreError(what, code="damaged")
        if len(indices) and not 0 <= indices.min() <= indices.max() < n_genes:
            what = f"relation '{name}': an entry is outside the {n_genes} genes"
            raise StoreError(what, code="damaged")
        return cls(name, indptr, indices, weights, directed=directed, counts=counts)


def _compress(row: Ints, column: Ints, weight: Floats, n: int) -> tuple[Ints, Indices, Floats]:
    order = np.argsort(row * n + column)
    indptr = offsets_of(np.bincount(row, minlength=n))
    return indptr, column[order].astype(np.int32), weight[order]
