"""Terms that genes have (GO, complexes, pathways), and what they say of a set of genes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from deltacell.arrays import Bools, Indices, Ints, column_of, distinct, offsets_of
from deltacell.cell.feature import Feature
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
    name
        What it is called, such as ``go_process`` or ``complexes``.
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
            raise InputError(
                f"annotation '{self.name}' has {len(self.terms)} terms and {len(self.ids)} ids"
            )
        if len(set(self.terms)) != len(self.terms):
            twice = next(t for i, t in enumerate(self.terms) if t in self.terms[:i])
            raise InputError(f"annotation '{self.name}' has two terms called '{twice}'")
        if len(self.indices) and not (
            0 <= self.indices.min() <= self.indices.max() < len(self.terms)
        ):
            raise InputError(f"annotation '{self.name}' refers to a term that it does not have")

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
        name
            What to call it.
        gene, term
            Indices of genes and of terms, one pair per entry.
        terms, ids
            The names of the terms and their identifiers.
        n_genes
            Number of genes of the cell.
        """
        width = max(len(terms), 1)
        gene = np.asarray(gene, dtype=np.int64).ravel()
        if len(gene) and not 0 <= gene.min() <= gene.max() < n_genes:
            raise InputError(f"annotation '{name}': a gene index is outside 0 to {n_genes - 1}")
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
            raise InputError(
                f"annotation '{self.name}' has no term that {FEATURE_MIN_GENES} genes share, so it "
                "cannot be a feature"
            )
        column = np.full(len(self.terms), -1)
        column[wide] = np.arange(len(wide))
        values = np.full((self.n_genes, len(wide)), np.nan, dtype=np.float32)
        values[self.known] = 0
        at = column[self.indices]
        values[self._gene[at >= 0], at[at >= 0]] = 1
        return Feature(self.name, values, tuple(self.terms[i] for i in wide))

    def terms_of(self, gene: int) -> list[str]:
        """Return the names of the terms of a gene."""
        return [self.terms[i] for i in self._row(gene)]

    def genes_of(self, term: str) -> Ints:
        """Return the genes that have a term, ascending."""
        if term not in self.terms:
            raise InputError(f"annotation '{self.name}' has no term '{term}'")
        genes: Ints = self._gene[self.indices == self.terms.index(term)]
        return genes

    def shared(self, genes: Iterable[int]) -> Ints:
        """Return the terms that all of the given genes have, the smallest first."""
        rows = [self._row(gene) for gene in genes]
        if not rows:
            return np.empty(0, dtype=np.int64)
        both = rows[0]
        for row in rows[1:]:
            both = np.intersect1d(both, row, assume_unique=True)
        order = np.lexsort((both, self.sizes[both]))
        return both[order].astype(np.int64)

    def take(self, genes: Ints) -> Annotation:
        """Return the annotation of the given genes, in their order, with all its terms."""
        rows = [self._row(int(gene)) for gene in genes]
        indptr = offsets_of(np.array([len(row) for row in rows], dtype=np.int64))
        flat = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
        return Annotation(self.name, indptr, flat.astype(np.int32), self.terms, self.ids)

    def renamed(self, name: str) -> Annotation:
        """Return the same annotation under another name."""
        return Annotation(name, self.indptr, self.indices, self.terms, self.ids)

    def equals(self, other: Annotation) -> bool:
        """Whether both have the same name, terms and genes."""
        return (
            (self.name, self.terms, self.ids) == (other.name, other.terms, other.ids)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    def __repr__(self) -> str:
        return (
            f"Annotation({self.name!r}, {len(self.terms):,} terms, known for "
            f"{int(self.known.sum()):,})"
        )

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables: ``rows``, ``entries`` and ``terms``."""
        return {
            "rows": pa.table({"indptr": pa.array(self.indptr, pa.int64())}),
            "entries": pa.table({"term": pa.array(self.indices, pa.int32())}),
            "terms": pa.table(
                {"name": pa.array(self.terms, pa.string()), "id": pa.array(self.ids, pa.string())}
            ),
        }

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], name: str) -> Annotation:
        """Inverse of `to_arrow`; the matrix stays memory-mapped."""
        terms = tables["terms"]
        return cls(
            name,
            column_of(tables["rows"], "indptr"),
            column_of(tables["entries"], "term"),
            tuple(terms["name"].to_pylist()),
            tuple(terms["id"].to_pylist()),
        )

    @cached_property
    def _gene(self) -> Ints:
        return np.repeat(np.arange(self.n_genes), np.diff(self.indptr))

    def _row(self, gene: int) -> Indices:
        return self.indices[self.indptr[gene] : self.indptr[gene + 1]]


def shared_terms(
    cell: Cell, genes: Iterable[str | int], *, max_genes: int | None = None
) -> list[SharedTerm]:
    """Return the terms that all genes of a set have, of all annotations of a cell.

    The smallest terms come first, as they say most.

    Parameters
    ----------
    cell
        The wild type.
    genes
        Names of any kind, or indices.
    max_genes
        Leave out terms of more genes, such as ``cytoplasm``.
    """
    at = _indices(cell, genes)
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
    cell
        The wild type.
    sets
        Gene sets, such as the first hundred of a ranking: names of any kind, or indices.
    background
        The genes that could have been drawn, such as all genes that were ranked; all genes of the
        cell where not given.
    """
    from scipy.stats import hypergeom

    given = [_indices(cell, genes) for genes in sets]
    possible = np.zeros(cell.n_genes, dtype=bool)
    possible[slice(None) if background is None else _indices(cell, background)] = True
    outside = {i for genes in given for i in genes.tolist() if not possible[i]}
    if outside:
        raise InputError(
            f"{len(outside):,} genes of the sets are not in the background, such as "
            f"{cell.genes.label(min(outside))}",
            fix="Give the genes that the sets were drawn from.",
        )
    drawn: Bools = np.zeros(cell.n_genes, dtype=bool)
    for genes in given:
        drawn[genes] = True
    tables = [
        _tested(cell, annotation, given, drawn, possible, hypergeom)
        for annotation in cell.annotations.values()
    ]
    table = pl.concat([pl.DataFrame(schema=_ENRICHMENT), *tables])
    q_value = pl.Series("q_value", corrected(table["p_value"].to_numpy()))
    return (
        table.with_columns(q_value)
        .filter(pl.col("genes") > 0)
        .sort("p_value", "annotation", "term", maintain_order=True)
    )


def corrected(p_values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return p-values corrected for their number by Benjamini and Hochberg.

    ``q_(i) = min over j >= i of p_(j) n / j``, where ``p_(1) <= … <= p_(n)``.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    q = np.empty_like(p)
    q[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(q, 1.0)


_ENRICHMENT: dict[str, Any] = {
    "annotation": pl.String,
    "term": pl.String,
    "id": pl.String,
    "genes": pl.Int64,
    "drawn": pl.Int64,
    "size": pl.Int64,
    "background": pl.Int64,
    "expected": pl.Float64,
    "fold": pl.Float64,
    "p_value": pl.Float64,
    "q_value": pl.Float64,
    "sets": pl.Int64,
    "sets_expected": pl.Float64,
    "members": pl.List(pl.String),
}


def _tested(
    cell: Cell,
    annotation: Annotation,
    sets: Sequence[Ints],
    drawn: Bools,
    possible: Bools,
    hypergeom: Any,
) -> pl.DataFrame:
    """Return the enrichment of every term of an annotation; its q-values are not yet known."""
    universe = possible & annotation.known
    n, n_drawn = int(universe.sum()), int((universe & drawn).sum())
    gene, term = annotation._gene, annotation.indices
    n_terms = len(annotation.terms)
    size = np.bincount(term[universe[gene]], minlength=n_terms)
    count = np.bincount(term[(universe & drawn)[gene]], minlength=n_terms)
    shared = np.zeros(n_terms, dtype=np.int64)
    for genes in sets:
        shared[annotation.shared(genes)] += 1
    by_chance = np.zeros(n_terms)
    for length, times in Counter(map(len, sets)).items():
        steps = np.arange(length)
        chance = (size[:, None] - steps) / np.maximum(n - steps, 1)
        by_chance += times * np.maximum(chance, 0).prod(axis=1)
    expected = size * (n_drawn / max(n, 1))
    members: list[list[str]] = [[] for _ in range(n_terms)]
    inside = drawn[gene]
    for g, t in zip(gene[inside].tolist(), term[inside].tolist(), strict=True):
        members[t].append(cell.genes.label(g))
    return pl.DataFrame(
        {
            "annotation": [annotation.name] * n_terms,
            "term": annotation.terms,
            "id": annotation.ids,
            "genes": count,
            "drawn": [n_drawn] * n_terms,
            "size": size,
            "background": [n] * n_terms,
            "expected": expected,
            "fold": np.divide(count, expected, out=np.zeros(n_terms), where=expected > 0),
            "p_value": np.minimum(hypergeom.sf(count - 1, n, size, n_drawn), 1.0),
            "q_value": [None] * n_terms,
            "sets": shared,
            "sets_expected": by_chance,
            "members": members,
        },
        schema=_ENRICHMENT,
    )


def _indices(cell: Cell, genes: Iterable[str | int]) -> Ints:
    found = [g if isinstance(g, (int, np.integer)) else cell.genes.index(g) for g in genes]
    index = np.unique(np.array(found, dtype=np.int64))
    if len(index) and not 0 <= index[0] <= index[-1] < cell.n_genes:
        raise InputError(f"a gene index is outside the cell, 0 to {cell.n_genes - 1}")
    return index
