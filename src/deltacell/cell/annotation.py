"""Annotations (GO terms, complexes, pathways) and numeric features of genes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from scipy.sparse import coo_array, csr_array

from deltacell.base.arrays import AnyArray, Bools, Floats, Ints, column_of
from deltacell.base.errors import InputError
from deltacell.cell.relation import check_rows

if TYPE_CHECKING:
    from deltacell.cell.cell import Cell

#: A term with fewer genes is not shared by any two, so it is not a feature.
FEATURE_MIN_GENES = 2


class SharedTerm(NamedTuple):
    """A term that all genes of a set have, and how many genes of the cell have it."""

    annotation: str
    term: str
    size: int


@dataclass(frozen=True, eq=False, repr=False)
class Annotation:
    """The terms of each gene under one name; a term may have an identifier (``GO:0006281``)."""

    name: str
    matrix: csr_array  # Boolean, [genes, terms]
    terms: tuple[str, ...]
    ids: tuple[str, ...] = ()  # by default empty

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids) or ("",) * len(self.terms))
        sizes = {len(self.ids), len(self.terms), len(set(self.terms)), self.matrix.shape[1]}
        if len(sizes) != 1:
            message = f"annotation '{self.name}': its terms, ids and matrix have different sizes"
            raise InputError(message, code="bad-shape")

    @classmethod
    def from_pairs(
        cls,
        name: str,
        gene: Any,
        term: Any,
        terms: Sequence[str],
        *,
        n_genes: int,
        ids: Sequence[str] = (),
    ) -> Annotation:
        """Make an annotation from pairs of a gene index [pairs] and a term index [pairs]."""
        row = np.asarray(gene, dtype=np.int64)
        column = np.asarray(term, dtype=np.int64)
        has_term = np.ones(len(row), dtype=bool)
        matrix = coo_array((has_term, (row, column)), shape=(n_genes, len(terms)))
        return cls(name, matrix.tocsr(), tuple(terms), tuple(ids))

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell, annotated or not."""
        return int(self.matrix.shape[0])

    @cached_property
    def known(self) -> Bools:
        """Which genes have at least one term."""
        known: Bools = np.diff(self.matrix.indptr) > 0
        return known

    def count(self, genes: Bools | slice = slice(None)) -> AnyArray:
        """Return how many of the given genes have each term, [terms]."""
        return np.bincount(self.matrix[genes].indices, minlength=len(self.terms))

    def stats(self) -> dict[str, int]:
        """Return the numbers of terms, of genes with one, and of pairs of these."""
        n_known = int(self.known.sum())
        return {"terms": len(self.terms), "genes": n_known, "pairs": self.matrix.nnz}

    @cached_property
    def feature(self) -> Feature:
        """The annotation as a feature: 1 for a term that a gene has, 0 for one that it lacks.

        The row of a gene without any term is NaN.
        """
        shared = np.flatnonzero(self.count() >= FEATURE_MIN_GENES)
        if not len(shared):
            message = f"annotation '{self.name}' is not a feature: no two genes share a term"
            raise InputError(message, code="no-feature")
        values = self.matrix[:, shared].toarray().astype(np.float32)
        values[~self.known] = np.nan
        return Feature(self.name, values, tuple(self.terms[i] for i in shared))

    def take(self, genes: Ints) -> Annotation:
        """Return the annotation of the given genes, in their order."""
        return replace(self, matrix=self.matrix[genes])

    def __repr__(self) -> str:
        n_known = int(self.known.sum())
        return f"Annotation({self.name!r}, {len(self.terms):,} terms, known for {n_known:,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its sparse rows and its terms as tables."""
        indptr = pa.array(self.matrix.indptr).cast(pa.int64())
        indices = pa.array(self.matrix.indices).cast(pa.int32())
        names = pa.array(self.terms, pa.string())
        ids = pa.array(self.ids, pa.string())
        return {
            "rows": pa.table({"indptr": indptr}),
            "entries": pa.table({"term": indices}),
            "terms": pa.table({"name": names, "id": ids}),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str) -> Annotation:
        """Return the annotation of tables that `to_arrow` made; inconsistent ones raise."""
        indptr = column_of(tables["rows"], "indptr")
        indices = column_of(tables["entries"], "term")
        terms = tuple(tables["terms"]["name"].to_pylist())
        ids = tuple(tables["terms"]["id"].to_pylist())
        check_rows(f"annotation '{name}'", indptr, indices, len(terms))
        has_term = np.ones(len(indices), dtype=bool)
        matrix = csr_array((has_term, indices, indptr), shape=(len(indptr) - 1, len(terms)))
        return cls(name, matrix, terms, ids)


def shared_terms(
    cell: Cell,
    genes: Iterable[str | int],
    *,
    max_genes: int | None = None,
) -> list[SharedTerm]:
    """Return the terms of at most `max_genes` genes that all genes of a set have, rarest first."""
    distinct_genes = np.unique(cell.genes.indices(genes))
    if not len(distinct_genes):
        return []
    terms = []
    for annotation in cell.annotations.values():
        n_with_term = np.bincount(annotation.matrix[distinct_genes].indices)
        sizes = annotation.count()
        for i in np.flatnonzero(n_with_term == len(distinct_genes)):
            terms.append(SharedTerm(annotation.name, annotation.terms[i], int(sizes[i])))
    small = [term for term in terms if max_genes is None or term.size <= max_genes]
    return sorted(small, key=lambda term: term.size)


def enrichment(
    cell: Cell,
    sets: Iterable[Iterable[str | int]],
    background: Iterable[str | int] | None = None,
) -> pl.DataFrame:
    """Test which terms are enriched among the genes of some sets.

    Each term is tested by the hypergeometric distribution: of the ``background`` genes (by default
    all of the cell) that have any term of the annotation, ``size`` have this one; of the distinct
    ``drawn`` genes of the sets among these, ``genes`` do. ``p_value`` is the probability of at
    least that many; ``q_value`` is corrected for all terms of all annotations by Benjamini and
    Hochberg. Genes, not sets, are counted, as the sets at the head of a ranking repeat their genes.
    Terms without a gene in the sets are left out after the correction.
    """
    from scipy.stats import false_discovery_control, hypergeom

    in_background = np.zeros(cell.n_genes, dtype=bool)
    in_background[slice(None) if background is None else cell.genes.indices(background)] = True
    in_a_set = np.zeros(cell.n_genes, dtype=bool)
    for genes in sets:
        in_a_set[cell.genes.indices(genes)] = True
    annotations = cell.annotations.values()
    tables = [_term_counts(annotation, in_background, in_a_set) for annotation in annotations]
    if not tables:
        return pl.DataFrame(schema={"term": pl.String, "genes": pl.Int64, "q_value": pl.Float64})
    table = pl.concat(tables)
    counts = [table[name].to_numpy() for name in ("background", "size", "drawn")]
    p_value = hypergeom.sf(table["genes"].to_numpy() - 1, *counts)
    p_value = np.nan_to_num(p_value, nan=1.0).clip(0, 1)
    q_value = false_discovery_control(p_value)
    table = table.with_columns(p_value=pl.Series(p_value), q_value=pl.Series(q_value))
    table = table.filter(pl.col("genes") > 0)
    return table.sort("p_value", "annotation", "term", maintain_order=True)


def _term_counts(annotation: Annotation, in_background: Bools, in_a_set: Bools) -> pl.DataFrame:
    """Return how often each term occurs among annotated genes, for two masks of genes [genes]."""
    in_universe = in_background & annotation.known
    is_drawn = in_universe & in_a_set
    n_universe = int(in_universe.sum())
    n_drawn = int(is_drawn.sum())
    size = annotation.count(in_universe)
    n_terms = len(annotation.terms)
    return pl.DataFrame(
        {
            "annotation": pl.repeat(annotation.name, n_terms, eager=True),
            "term": pl.Series(annotation.terms, dtype=pl.String),
            "genes": annotation.count(is_drawn),
            "drawn": np.full(n_terms, n_drawn),
            "size": size,
            "background": np.full(n_terms, n_universe),
            "expected": size * (n_drawn / max(n_universe, 1)),
        },
    )


@dataclass(frozen=True, eq=False, repr=False)
class Feature:
    """Named numbers for each gene, such as a phenotype profile."""

    name: str
    values: Floats  # [genes, width]; a missing value is NaN, never 0
    columns: tuple[str, ...] = ()  # by default 1, 2, …

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float32)
        width = values.shape[1] if values.ndim == 2 else 0
        columns = tuple(map(str, self.columns if len(self.columns) else range(1, width + 1)))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "columns", columns)
        has_distinct_columns = len(columns) == len(set(columns)) == width
        if not width or not has_distinct_columns or np.isinf(values).any():
            message = (
                f"feature '{self.name}' is not a matrix of finite numbers with distinct columns"
            )
            raise InputError(message, code="bad-feature", fix="Use NaN for a missing value.")

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell, known or not."""
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    @cached_property
    def known(self) -> Bools:
        """Which genes have at least one value."""
        known: Bools = np.any(~np.isnan(self.values), axis=1)
        return known

    @property
    def missing(self) -> float:
        """The fraction of values that the known genes lack; 0 if no gene is known."""
        n_values = int(self.known.sum()) * self.width
        n_present = int((~np.isnan(self.values)).sum())
        return 1 - n_present / n_values if n_values else 0.0

    def stats(self) -> dict[str, float]:
        """Return its width, the number of known genes and the fraction of missing values."""
        return {"width": self.width, "known": int(self.known.sum()), "missing": self.missing}

    def take(self, genes: Ints) -> Feature:
        """Return the feature of the given genes, in their order."""
        return replace(self, values=self.values[genes])

    def __repr__(self) -> str:
        return f"Feature({self.name!r}, width {self.width}, known for {int(self.known.sum()):,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its values and the names of its columns as tables."""
        values = pa.FixedSizeListArray.from_arrays(self.values.ravel(), self.width)
        names = pa.array(self.columns, pa.string())
        return {"values": pa.table({"values": values}), "columns": pa.table({"column": names})}

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str, width: int) -> Feature:
        """Return the feature of tables that `to_arrow` made."""
        # Chunk by chunk, so that the values stay memory-mapped.
        chunks = tables["values"]["values"].chunks
        flat = pa.chunked_array([chunk.flatten() for chunk in chunks], pa.float32())
        values = column_of(pa.table({"values": flat}), "values").reshape(-1, width)
        return cls(name, values, tuple(tables["columns"]["column"].to_pylist()))
