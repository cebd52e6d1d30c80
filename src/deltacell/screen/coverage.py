"""Which genotypes were tested at all: absent from a list of hits does not mean untested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.arrays import Bools, Ints, offsets_of
from deltacell.screen.genotypes import comparable_keys, repeats_a_gene, set_keys

#: Rows that fill less of the grid of queries and array genes than this are a part of what a study
#: crossed, and say nothing about the rest.
FILLED = 0.25


@dataclass(frozen=True, eq=False)
class StudyCoverage:
    """What one study crossed on one array: every query with every array gene."""

    study: str  # one that used several arrays has one of these for each
    query_genes: Ints  # the query sets, of one gene or two
    query_offsets: Ints
    array_genes: Ints
    complete: bool  # a list of hits shows only what had a hit, so its coverage is a lower bound

    @property
    def n_queries(self) -> int:
        """Number of query sets."""
        return len(self.query_offsets) - 1

    def tested(self, genes: Ints, offsets: Ints, n_genes: int) -> Bools:
        """Return which gene sets are a query set and an array gene of this study."""
        sizes = np.diff(offsets)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        on_array = np.zeros(n_genes, dtype=bool)
        on_array[self.array_genes] = True
        # Each gene in turn is taken as the array gene, and the rest as the query.
        candidates = np.flatnonzero(on_array[genes] & (sizes[owner] > 1))
        rest_sizes = sizes[owner[candidates]] - 1
        rest_offsets = offsets_of(rest_sizes)
        position = np.arange(rest_offsets[-1]) - np.repeat(rest_offsets[:-1], rest_sizes)
        start = np.repeat(offsets[owner[candidates]], rest_sizes)
        skipped = np.repeat(candidates, rest_sizes) - start
        rest = genes[start + position + (position >= skipped)]
        keys, queries = comparable_keys(
            n_genes, (rest, rest_offsets), (self.query_genes, self.query_offsets)
        )
        tested = np.zeros(len(sizes), dtype=bool)
        tested[owner[candidates[np.isin(keys, queries)]]] = True
        return tested


@dataclass(frozen=True, eq=False)
class Coverage:
    """The coverage of every study of a screen, and of every array that a study used."""

    studies: tuple[StudyCoverage, ...] = ()

    @classmethod
    def from_rows(
        cls,
        genes: Ints,
        offsets: Ints,
        role: pl.Series,
        study: pl.Series,
        *,
        panel: pl.Series | None = None,
        complete: bool,
        n_genes: int,
    ) -> Coverage:
        """Derive the coverage from what was reported.

        Only rows of one array gene and otherwise query genes count. `panel` is the array that each
        genotype was made on; `complete` says that the rows are not merely a list of hits.
        """
        sizes = np.diff(offsets)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        is_query = (role == "query").to_numpy()
        query_sizes = np.bincount(owner, is_query, len(sizes)).astype(np.int64)
        on_array = np.bincount(owner, (role == "array").to_numpy(), len(sizes))
        usable = (on_array == 1) & (query_sizes == sizes - 1) & (query_sizes > 0)
        parts = pl.DataFrame({"study": study, "panel": study if panel is None else panel})
        part = parts.select(pl.struct("study", "panel").rank("dense")).to_series().to_numpy()
        studies = []
        for number in dict.fromkeys(part[usable].tolist()):
            mine = usable & (part == number)
            queries, n_query = genes[mine[owner] & is_query], query_sizes[mine]
            arrays = genes[mine[owner] & ~is_query]
            keys = set_keys(queries, offsets_of(n_query), n_genes)
            distinct, first, query = np.unique(keys, return_index=True, return_inverse=True)
            kept = np.zeros(len(query), dtype=bool)
            kept[first] = True
            on_it = np.unique(arrays)
            crosses = len(np.unique(query * n_genes + arrays))
            studies.append(
                StudyCoverage(
                    study[int(np.argmax(mine))],
                    queries[np.repeat(kept, n_query)],
                    offsets_of(n_query[kept]),
                    on_it,
                    complete and crosses >= FILLED * len(distinct) * len(on_it),
                )
            )
        return cls(tuple(studies))

    def tested(self, genes: Ints, offsets: Ints, n_genes: int) -> Bools:
        """Return which gene sets were tested by any study."""
        tested = np.zeros(len(offsets) - 1, dtype=bool)
        for study in self.studies:
            tested |= study.tested(genes, offsets, n_genes)
        return tested

    def renumbered(self, new_index: Ints) -> Coverage:
        """Return the coverage over other gene indices; -1 marks a gene that is gone."""
        studies = []
        for s in self.studies:
            genes, sizes = new_index[s.query_genes], np.diff(s.query_offsets)
            owner = np.repeat(np.arange(len(sizes)), sizes)
            whole = ~repeats_a_gene(genes, s.query_offsets)
            whole[owner[genes < 0]] = False
            queries, offsets = genes[whole[owner]], offsets_of(sizes[whole])
            arrays = new_index[s.array_genes]
            arrays = np.unique(arrays[arrays >= 0])
            studies.append(StudyCoverage(s.study, queries, offsets, arrays, s.complete))
        return Coverage(tuple(studies))

    def only(self, studies: Iterable[str]) -> Coverage:
        """Return the coverage of the named studies."""
        wanted = set(studies)
        return Coverage(tuple(s for s in self.studies if s.study in wanted))

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its parts: the studies, and the query sets and array genes of each."""
        studies = [(s.study, s.complete) for s in self.studies]
        queries = [
            (i, genes.tolist())
            for i, s in enumerate(self.studies)
            for genes in np.split(s.query_genes, s.query_offsets[1:-1])[: s.n_queries]
        ]
        arrays = [(i, gene) for i, s in enumerate(self.studies) for gene in s.array_genes.tolist()]
        rows: dict[str, list[Any]] = {"studies": studies, "queries": queries, "arrays": arrays}
        return {
            f"coverage.{part}": pa.table(
                {name: [row[i] for row in rows[part]] for i, name in enumerate(schema.names)},
                schema=schema,
            )
            for part, schema in _SCHEMAS.items()
        }

    @classmethod
    def from_arrow(cls, parts: Mapping[str, pa.Table]) -> Coverage:
        """Inverse of `to_arrow`."""
        queries, arrays = parts["coverage.queries"], parts["coverage.arrays"]
        query_part, array_part = queries["part"].to_numpy(), arrays["part"].to_numpy()
        sets, array_genes = queries["genes"].to_pylist(), arrays["gene"].to_numpy()
        studies = []
        for i, described in enumerate(parts["coverage.studies"].to_pylist()):
            mine = [sets[row] for row in np.flatnonzero(query_part == i)]
            studies.append(
                StudyCoverage(
                    described["study"],
                    np.array([gene for genes in mine for gene in genes], dtype=np.int64),
                    offsets_of(np.array([len(genes) for genes in mine], dtype=np.int64)),
                    array_genes[array_part == i].astype(np.int64),
                    described["complete"],
                )
            )
        return cls(tuple(studies))


_SCHEMAS = {
    "studies": pa.schema([("study", pa.string()), ("complete", pa.bool_())]),
    "queries": pa.schema([("part", pa.int32()), ("genes", pa.list_(pa.int32()))]),
    "arrays": pa.schema([("part", pa.int32()), ("gene", pa.int32())]),
}
