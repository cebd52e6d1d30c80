"""Which genotypes were tested at all: absent from a list of hits does not mean untested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Bools, Ints, offsets_of
from deltacell.screen.keys import comparable_keys


@dataclass(frozen=True, eq=False)
class StudyCoverage:
    """What one study crossed: every query with every array gene.

    Parameters
    ----------
    study
        Its name.
    query_genes, query_offsets
        The query sets, of one gene or two.
    array_genes
        The genes of the array.
    complete
        Whether these are all the study crossed. A list of hits shows only queries and array genes
        that had a hit, so what is derived from it is a lower bound.
    """

    study: str
    query_genes: Ints
    query_offsets: Ints
    array_genes: Ints
    complete: bool

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
    """The coverage of every study of a screen; no study is listed twice."""

    studies: tuple[StudyCoverage, ...] = ()

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
            genes = new_index[s.query_genes]
            sizes = np.diff(s.query_offsets)
            owner = np.repeat(np.arange(len(sizes)), sizes)
            whole = np.ones(len(sizes), dtype=bool)
            whole[owner[genes < 0]] = False
            arrays = new_index[s.array_genes]
            studies.append(
                StudyCoverage(
                    s.study,
                    genes[whole[owner]],
                    offsets_of(sizes[whole]),
                    arrays[arrays >= 0],
                    s.complete,
                )
            )
        return Coverage(tuple(studies))

    def only(self, studies: Iterable[str]) -> Coverage:
        """Return the coverage of the named studies."""
        wanted = set(studies)
        return Coverage(tuple(s for s in self.studies if s.study in wanted))

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its parts: the query sets and the array genes of all studies."""
        queries = {
            "study": [s.study for s in self.studies for _ in range(s.n_queries)],
            "genes": [
                s.query_genes[a:b].tolist()
                for s in self.studies
                for a, b in zip(s.query_offsets[:-1], s.query_offsets[1:], strict=True)
            ],
        }
        arrays = {
            "study": [s.study for s in self.studies for _ in s.array_genes],
            "gene": [int(g) for s in self.studies for g in s.array_genes],
        }
        schema = pa.schema([("study", pa.string()), ("genes", pa.list_(pa.int32()))])
        array_schema = pa.schema([("study", pa.string()), ("gene", pa.int32())])
        return {
            "coverage.queries": pa.table(queries, schema=schema),
            "coverage.arrays": pa.table(arrays, schema=array_schema),
        }

    def describe(self) -> list[dict[str, Any]]:
        """Return what is not in its parts."""
        return [{"study": s.study, "complete": s.complete} for s in self.studies]

    @classmethod
    def from_arrow(
        cls, parts: Mapping[str, pa.Table], described: Iterable[Mapping[str, Any]]
    ) -> Coverage:
        """Inverse of `to_arrow` and `describe`."""
        queries, arrays = parts["coverage.queries"], parts["coverage.arrays"]
        query_study = np.array(queries["study"].to_pylist(), dtype=object)
        array_study = np.array(arrays["study"].to_pylist(), dtype=object)
        sets, array_genes = queries["genes"].to_pylist(), arrays["gene"].to_numpy()
        studies = []
        for d in described:
            mine = [sets[i] for i in np.flatnonzero(query_study == d["study"])]
            studies.append(
                StudyCoverage(
                    d["study"],
                    np.array([g for s in mine for g in s], dtype=np.int64),
                    offsets_of(np.array([len(s) for s in mine], dtype=np.int64)),
                    array_genes[array_study == d["study"]].astype(np.int64),
                    d["complete"],
                )
            )
        return cls(tuple(studies))
