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
    name
        What the relation is called.
    indptr, indices, weights
        The rows; within a row the sources ascend. No self loops, no duplicates.
    directed
        Whether an edge has a direction.
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
        name
            What to call it.
        source, target
            Gene indices.
        weight
            One number an edge; 1 where not given.
        n_genes
            Number of genes of the cell.
        directed
            Whether an edge has a direction.
        """
        source = np.asarray(source, dtype=np.int64).ravel()
        target = np.asarray(target, dtype=np.int64).ravel()
        given = (
            np.ones(len(source), dtype=np.float32)
            if weight is None
            else np.asarray(weight, dtype=np.float32).ravel()
        )
        _check_edges(name, source, target, given, n_genes)
        loop = source == target
        source, target, given = source[~loop], target[~loop], given[~loop]
        if directed:
            low, high = target, source
        else:
            low, high = np.minimum(source, target), np.maximum(source, target)
        key, kept_weight = _largest_per_key(low * n_genes + high, given)
        repeats = len(low) - len(key)
        written_twice = len(source) - len(distinct(source * n_genes + target)[0])
        low, high = key // n_genes, key % n_genes
        counts = Counts(
            read=len(loop),
            kept=len(key),
            dropped={
                "self loop": int(loop.sum()),
                "duplicate": written_twice,
                "other direction of an edge": repeats - written_twice,
            },
        )
        if not directed:
            low, high = np.concatenate([low, high]), np.concatenate([high, low])
            kept_weight = np.concatenate([kept_weight, kept_weight])
        return cls(
            name, *_compress(low, high, kept_weight, n_genes), directed=directed, counts=counts
        )

    @classmethod
    def merge(cls, name: str, relations: Iterable[Relation]) -> Relation:
        """Return the union of several relations; the largest weight of an edge is kept.

        The union is directed if any of them is.
        """
        relations = list(relations)
        if not relations:
            raise InputError(f"nothing to merge into the relation '{name}'")
        n_genes = relations[0].n_genes
        if any(r.n_genes != n_genes for r in relations):
            sizes = ", ".join(f"'{r.name}' {r.n_genes}" for r in relations)
            raise InputError(f"relations over different numbers of genes cannot merge: {sizes}")
        directed = any(r.directed for r in relations)
        parts = [r.entries() if directed else r.edges() for r in relations]
        source, target, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls.from_edges(name, source, target, weight, n_genes=n_genes, directed=directed)

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
        touched = self.indptr[1:] > self.indptr[:-1]
        if self.directed:
            touched = touched | (self.transpose.indptr[1:] > self.transpose.indptr[:-1])
        return int(touched.sum())

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
        """The relation with every edge turned round; itself where undirected."""
        if not self.directed:
            return self
        source, target, weight = self.entries()
        turned = Relation(
            self.name,
            *_compress(source, target, weight, self.n_genes),
            directed=True,
            counts=self.counts,
        )
        turned.__dict__["transpose"] = self
        return turned

    def entries(self) -> Edges:
        """Return all entries, both directions of undirected edges, ordered by target."""
        target = np.repeat(np.arange(self.n_genes, dtype=np.int64), np.diff(self.indptr))
        return Edges(self.indices.astype(np.int64), target, self.weights)

    def edges(self) -> Edges:
        """Return every edge once; of an undirected one, the smaller gene is the source."""
        source, target, weight = self.entries()
        if self.directed:
            return Edges(source, target, weight)
        once = source < target
        return Edges(source[once], target[once], weight[once])

    def take(self, genes: Ints) -> Relation:
        """Return the relation among the given genes, renumbered in their order."""
        new_index = np.full(self.n_genes, -1, dtype=np.int64)
        new_index[genes] = np.arange(len(genes))
        source, target, weight = self.edges()
        source, target = new_index[source], new_index[target]
        inside = (source >= 0) & (target >= 0)
        taken = Relation.from_edges(
            self.name,
            source[inside],
            target[inside],
            weight[inside],
            n_genes=len(genes),
            directed=self.directed,
        )
        outside = Counts(
            self.n_edges, int(inside.sum()), {"outside the genes taken": int((~inside).sum())}
        )
        taken.counts = self.counts.then(outside)
        return taken

    def renamed(self, name: str) -> Relation:
        """Return the same relation under another name."""
        return Relation(
            name,
            self.indptr,
            self.indices,
            self.weights,
            directed=self.directed,
            counts=self.counts,
        )

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
        device, dtype
            Of the tensor.
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
        return (
            self.name == other.name
            and self.directed == other.directed
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
            and np.array_equal(self.weights, other.weights)
        )

    def __repr__(self) -> str:
        way = "directed" if self.directed else "undirected"
        return f"Relation({self.name!r}, {way}, {self.n_edges:,} edges, {self.n_connected:,} genes)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its parts: the row pointers and the entries."""
        return {
            "rows": pa.table({"indptr": pa.array(self.indptr, pa.int64())}),
            "entries": pa.table(
                {
                    "indices": pa.array(self.indices, pa.int32()),
                    "weights": pa.array(self.weights, pa.float32()),
                }
            ),
        }

    @classmethod
    def from_arrow(cls, parts: Mapping[str, pa.Table], described: Mapping[str, Any]) -> Relation:
        """Inverse of `to_arrow` and `describe`; the arrays stay memory-mapped."""
        indptr = column_of(parts["rows"], "indptr")
        indices = column_of(parts["entries"], "indices")
        _check_rows(described["name"], indptr, indices)
        return cls(
            described["name"],
            indptr,
            indices,
            column_of(parts["entries"], "weights"),
            directed=described["directed"],
            counts=Counts.from_json(described["counts"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return what is not in its parts."""
        return {"name": self.name, "directed": self.directed, "counts": self.counts.to_json()}


def _check_rows(name: str, indptr: Ints, indices: Indices) -> None:
    # A sparse product does not look where an index points, so what comes from disk is looked at.
    n_genes = len(indptr) - 1
    whole = n_genes >= 0 and indptr[0] == 0 and indptr[-1] == len(indices)
    if not whole or (np.diff(indptr) < 0).any():
        raise StoreError(f"relation '{name}': the row pointers do not fit the entries")
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_genes:
        raise StoreError(f"relation '{name}': an entry is outside the {n_genes} genes")


def _check_edges(name: str, source: Ints, target: Ints, weight: Floats, n_genes: int) -> None:
    if not len(source) == len(target) == len(weight):
        raise InputError(
            f"relation '{name}': {len(source)} sources, {len(target)} targets and "
            f"{len(weight)} weights"
        )
    for gene in (source, target):
        outside = (gene < 0) | (gene >= n_genes)
        if outside.any():
            raise InputError(
                f"relation '{name}': gene index {gene[outside][0]} is outside the cell, "
                f"whose genes are 0 to {n_genes - 1}"
            )
    if not np.isfinite(weight).all():
        raise InputError(f"relation '{name}': an edge weight is not a finite number")


def _largest_per_key(key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    order = np.argsort(key)
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    largest: Floats = np.maximum.reduceat(weight[order], starts) if len(key) else weight
    return key[starts], largest


def _compress(row: Ints, column: Ints, weight: Floats, n: int) -> tuple[Ints, Indices, Floats]:
    order = np.argsort(row * n + column)
    indptr = offsets_of(np.bincount(row, minlength=n))
    return indptr, column[order].astype(np.int32), weight[order]
