"""Terms that genes have (GO, complexes, pathways), and what they say of a set of genes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.arrays import (
    Bools,
    Floats,
    Indices,
    Ints,
    column_of,
    distinct,
    offsets_of,
    ragged_positions,
)
from deltacell.errors import InputError

if TYPE_CHECKING:
    from deltacell.cell.cell import Cell

#: A term with fewer genes tells two genes of a cell apart from no others, so it is not a feature.
FEATURE_MIN_GENES = 2


class SharedTerm(NamedTuple):
    """A term that all genes of a set have, and how many genes of the cell have it."""

    annotation: str
    term: str
    size: int


@dataclass(frozen=True, eq=False)
class Annotation:
    """The terms of each gene under one name: a sparse matrix [genes, terms] of yes and no.

    Parameters
    ----------
    indptr, indices
        Compressed sparse rows: the terms of gene i are ``indices[indptr[i]:indptr[i + 1]]``,
        ascending.
    terms
        The name of each term; no two are the same.
    ids
        The identifier of each term (``GO:0006281``), empty strings where it has none.
    """

    name: str
    indptr: Ints
    indices: Indices
    terms: tuple[str, ...]
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "ids", tuple(self.ids) or ("",) * len(self.terms))
        if len(self.ids) != len(self.terms):
            raise self._error("bad-shape", f"has {len(self.terms)} terms and {len(self.ids)} ids")
        if len(set(self.terms)) != len(self.terms):
            twice = next(t for i, t in enumerate(self.terms) if t in self.terms[:i])
            raise self._error("duplicate-term", f"has two terms called '{twice}'")
        outside = (self.indices < 0) | (self.indices >= len(self.terms))
        if outside.any():
            raise self._error("bad-shape", "refers to a term that it does not have")

    def _error(self, code: str, what: str) -> InputError:
        return InputError(f"annotation '{self.name}' {what}", code=code)

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
        """Make an annotation from pairs of a gene and a term; repeated pairs count once.

        Parameters
        ----------
        gene, term
            Indices of genes and of terms, one pair per entry.
        terms, ids
            The names of the terms and their identifiers.
        """
        width = max(len(terms), 1)
        gene = np.asarray(gene, dtype=np.int64).ravel()
        if len(gene) and not 0 <= gene.min() <= gene.max() < n_genes:
            what = f"annotation '{name}': a gene index is outside the cell, 0 to {n_genes - 1}"
            raise InputError(what, code="gene-index-outside")
        key, _ = distinct(gene * width + np.asarray(term, dtype=np.int64).ravel())
        indptr = offsets_of(np.bincount(key // width, minlength=n_genes))
        return cls(name, indptr, (key % width).astype(np.int32), tuple(terms), tuple(ids))

    @property
    def n_genes(self) -> int:
        """Number of genes of the cell."""
        return len(self.indptr) - 1

    @cached_property
    def sizes(self) -> Ints:
        """How many genes have each term."""
        return np.bincount(self.indices, minlength=len(self.terms)).astype(np.int64)

    @cached_property
    def known(self) -> Bools:
        """Which genes have at least one term."""
        known: Bools = np.diff(self.indptr) > 0
        return known

    @property
    def matrix(self) -> Any:
        """The annotation as a Boolean `scipy.sparse.csr_array` [genes, terms]."""
        from scipy.sparse import csr_array

        yes = np.ones(len(self.indices), dtype=bool)
        return csr_array((yes, self.indices, self.indptr), shape=(self.n_genes, len(self.terms)))

    @cached_property
    def feature(self) -> Feature:
        """The annotation as a feature: 1 for a term that a gene has, 0 for one that it lacks.

        A gene without any term is not known, and its row is NaN. Terms of fewer than
        `FEATURE_MIN_GENES` genes are left out.
        """
        wide = np.flatnonzero(self.sizes >= FEATURE_MIN_GENES)
        if not len(wide):
            what = f"has no term that {FEATURE_MIN_GENES} genes share, so it cannot be a feature"
            raise self._error("no-feature", what)
        values = self.matrix[:, wide].toarray().astype(np.float32)
        values[~self.known] = np.nan
        return Feature(self.name, values, tuple(self.terms[i] for i in wide))

    def terms_of(self, gene: int) -> list[str]:
        """Return the names of the terms of a gene."""
        return [self.terms[i] for i in self._row(gene)]

    def genes_of(self, term: str) -> Ints:
        """Return the genes that have a term, ascending."""
        if term not in self.terms:
            raise self._error("unknown-term", f"has no term '{term}'")
        genes: Ints = self._gene[self.indices == self.terms.index(term)]
        return genes

    def shared(self, genes: Iterable[int]) -> Ints:
        """Return the terms that all of the given genes have, the smallest first."""
        rows = [set(self._row(gene).tolist()) for gene in genes]
        both = sorted(set.intersection(*rows)) if rows else []
        return np.array(sorted(both, key=self.sizes.__getitem__), dtype=np.int64)

    def take(self, genes: Ints) -> Annotation:
        """Return the annotation of the given genes, in their order, with all its terms."""
        lengths = np.diff(self.indptr)[genes]
        flat = self.indices[ragged_positions(self.indptr[:-1][genes], lengths)]
        return replace(self, indptr=offsets_of(lengths), indices=flat)

    def renamed(self, name: str) -> Annotation:
        """Return the same annotation under another name."""
        return replace(self, name=name)

    def equals(self, other: Annotation) -> bool:
        """Whether both have the same name, terms and genes."""
        return self.name == other.name and self.to_arrow() == other.to_arrow()

    def __repr__(self) -> str:
        known = int(self.known.sum())
        return f"Annotation({self.name!r}, {len(self.terms):,} terms, known for {known:,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: ``rows``, ``entries`` and ``terms``."""
        names, ids = pa.array(self.terms, pa.string()), pa.array(self.ids, pa.string())
        return {
            "rows": pa.table({"indptr": pa.array(self.indptr, pa.int64())}),
            "entries": pa.table({"term": pa.array(self.indices, pa.int32())}),
            "terms": pa.table({"name": names, "id": ids}),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str) -> Annotation:
        """Inverse of `to_arrow`; the matrix stays memory-mapped."""
        rows, entries = column_of(tables["rows"], "indptr"), column_of(tables["entries"], "term")
        names, ids = (tuple(tables["terms"][c].to_pylist()) for c in ("name", "id"))
        return cls(name, rows, entries, names, ids)

    @cached_property
    def _gene(self) -> Ints:
        return np.repeat(np.arange(self.n_genes), np.diff(self.indptr))

    def _row(self, gene: int) -> Indices:
        return self.indices[self.indptr[gene] : self.indptr[gene + 1]]


def shared_terms(
    cell: Cell, genes: Iterable[str | int], *, max_genes: int | None = None
) -> list[SharedTerm]:
    """Return the terms that all genes of a set have, the smallest first, as they say most.

    Parameters
    ----------
    genes
        Names of any kind, or indices.
    max_genes
        Leave out terms of more genes, such as ``cytoplasm``.
    """
    at = np.unique(cell.genes.indices(genes))
    found = [
        SharedTerm(annotation.name, annotation.terms[term], int(annotation.sizes[term]))
        for annotation in cell.annotations.values()
        for term in annotation.shared(at)
    ]
    small = [term for term in found if max_genes is None or term.size <= max_genes]
    return sorted(small, key=lambda term: term.size)


def enrichment(
    cell: Cell, sets: Iterable[Iterable[str | int]], background: Iterable[str | int] | None = None
) -> pl.DataFrame:
    """Return which terms the genes of some sets have more often than a random draw would.

    Each term is tested by the hypergeometric distribution: of the ``background`` genes that have
    any term of the annotation, ``size`` have this one; of the distinct ``drawn`` genes of the sets,
    ``genes`` do. ``p_value`` is the probability of as many or more, and ``q_value`` is corrected
    for the number of all terms of all annotations by Benjamini and Hochberg. Genes, not sets, are
    counted, as the sets at the head of a ranking repeat their genes.

    The columns are annotation, term, id, genes, drawn, size, background, expected, fold, p_value,
    q_value, sets (how many sets have the term in all of their genes), sets_expected (of as many
    random sets) and members (labels of the genes). Terms of which the sets have no gene are left
    out after the correction; the smallest p_value comes first.

    Parameters
    ----------
    sets
        Gene sets, such as the first hundred of a ranking: names of any kind, or indices.
    background
        The genes that could have been drawn, such as all genes that were ranked; all genes of the
        cell where not given.
    """
    from scipy.stats import false_discovery_control, hypergeom

    given = [np.unique(cell.genes.indices(genes)) for genes in sets]
    possible, drawn = np.zeros((2, cell.n_genes), dtype=bool)
    possible[slice(None) if background is None else cell.genes.indices(background)] = True
    drawn[np.concatenate(given) if given else []] = True
    outside = np.flatnonzero(drawn & ~possible)
    if len(outside):
        raise InputError(
            f"{len(outside):,} genes of the sets are not in the background, such as "
            f"{cell.genes.label(int(outside[0]))}",
            code="outside-background",
            fix="Give the genes that the sets were drawn from.",
        )
    tables = [pl.DataFrame(schema=_ENRICHMENT)]
    for annotation in cell.annotations.values():
        gene, term, n_terms = annotation._gene, annotation.indices, len(annotation.terms)
        universe = possible & annotation.known
        n, n_drawn = int(universe.sum()), int((universe & drawn).sum())
        size = np.bincount(term[universe[gene]], minlength=n_terms)
        count = np.bincount(term[(universe & drawn)[gene]], minlength=n_terms)
        shared, by_chance = np.zeros(n_terms, dtype=np.int64), np.zeros(n_terms)
        for genes in given:
            shared[annotation.shared(genes)] += 1
        for length, times in Counter(map(len, given)).items():
            steps = np.arange(length)
            chance = (size[:, None] - steps) / np.maximum(n - steps, 1)
            by_chance += times * np.maximum(chance, 0).prod(axis=1)
        expected = size * (n_drawn / max(n, 1))
        members: list[list[str]] = [[] for _ in range(n_terms)]
        for g, t in zip(gene[drawn[gene]].tolist(), term[drawn[gene]].tolist(), strict=True):
            members[t].append(cell.genes.label(g))
        columns = {
            "annotation": [annotation.name] * n_terms,
            "term": annotation.terms,
            "id": annotation.ids,
            "genes": count,
            "drawn": [n_drawn] * n_terms,
            "size": size,
            "background": [n] * n_terms,
            "expected": expected,
            "fold": np.divide(count, expected, out=np.zeros(n_terms), where=expected > 0),
            "p_value": np.nan_to_num(hypergeom.sf(count - 1, n, size, n_drawn), nan=1.0).clip(0, 1),
            "q_value": [None] * n_terms,
            "sets": shared,
            "sets_expected": by_chance,
            "members": members,
        }
        tables.append(pl.DataFrame(columns, schema=_ENRICHMENT))
    table = pl.concat(tables)
    p_value = table["p_value"].to_numpy()
    q_value = false_discovery_control(p_value) if len(p_value) else p_value
    table = table.with_columns(q_value=pl.Series(q_value)).filter(pl.col("genes") > 0)
    return table.sort("p_value", "annotation", "term", maintain_order=True)


_ENRICHMENT: dict[str, Any] = {
    **dict.fromkeys(("annotation", "term", "id"), pl.String),
    **dict.fromkeys(("genes", "drawn", "size", "background"), pl.Int64),
    **dict.fromkeys(("expected", "fold", "p_value", "q_value"), pl.Float64),
    "sets": pl.Int64,
    "sets_expected": pl.Float64,
    "members": pl.List(pl.String),
}


@dataclass(frozen=True, eq=False)
class Feature:
    """Numbers that are known of each gene under one name, such as a phenotype profile.

    Parameters
    ----------
    values
        One row per gene of the cell, [genes, width]. A missing value is NaN, never a zero.
    columns
        The name of each column; ``1``, ``2``, … where not given.
    """

    name: str
    values: Floats
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] == 0:
            what = f"has the shape {values.shape}, and (genes, width) was expected"
            raise self._error("bad-shape", what)
        columns = self.columns if len(self.columns) else range(1, values.shape[1] + 1)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "columns", tuple(map(str, columns)))
        if len(self.columns) != self.width:
            what = f"has the shape {values.shape} and {len(self.columns)} column names"
            raise self._error("bad-shape", what)
        if len(set(self.columns)) != self.width:
            twice = next(c for i, c in enumerate(self.columns) if c in self.columns[:i])
            raise self._error("duplicate-column", f"has two columns called '{twice}'")
        infinite = np.isinf(values).any(axis=1)
        if infinite.any():
            what = f"has an infinite number in row {int(np.argmax(infinite))}"
            raise self._error("not-finite", what, "Use NaN for a missing value.")

    def _error(self, code: str, what: str, fix: str | None = None) -> InputError:
        return InputError(f"feature '{self.name}' {what}", code=code, fix=fix)

    @classmethod
    def of_all(cls, name: str, values: Any, columns: Sequence[str] = ()) -> Feature:
        """Make a feature of anything that NumPy takes for a matrix."""
        return cls(name, np.atleast_1d(np.asarray(values, dtype=np.float32)), tuple(columns))

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
        """The share of values that the known genes lack; 0 where no gene is known."""
        n = int(self.known.sum()) * self.width
        return 1 - int((~np.isnan(self.values)).sum()) / n if n else 0.0

    def take(self, genes: Ints) -> Feature:
        """Return the feature of the given genes, in their order."""
        return replace(self, values=self.values[genes])

    def renamed(self, name: str) -> Feature:
        """Return the same feature under another name."""
        return replace(self, name=name)

    def equals(self, other: Feature) -> bool:
        """Whether both have the same name, columns and values, missing ones included."""
        named = (self.name, self.columns) == (other.name, other.columns)
        return named and np.array_equal(self.values, other.values, equal_nan=True)

    def __repr__(self) -> str:
        return f"Feature({self.name!r}, width {self.width}, known for {int(self.known.sum()):,})"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: ``values``, one row per gene, and ``columns``."""
        flat = pa.array(self.values.ravel(), pa.float32())
        return {
            "values": pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, self.width)}),
            "columns": pa.table({"column": pa.array(self.columns, pa.string())}),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str, width: int) -> Feature:
        """Inverse of `to_arrow`; the values stay memory-mapped.

        Earlier versions wrote zeros with a column ``known`` beside them, and no column names.
        """
        table = tables["values"]
        flat = pa.chunked_array([c.flatten() for c in table["values"].chunks], pa.float32())
        values = column_of(pa.table({"values": flat}), "values").reshape(-1, width)
        if "known" in table.column_names:
            values = np.where(column_of(table, "known")[:, None], values, np.float32(np.nan))
        columns = tables["columns"]["column"].to_pylist() if "columns" in tables else ()
        return cls(name, values, tuple(columns))
