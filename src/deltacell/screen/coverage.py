"""Which genotypes were tested: a genotype that is not in a list of hits may have been tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.base.arrays import Ints, offsets_of
from deltacell.screen.genotypes import repeats_a_gene, sets_with

#: Rows that cover less of the grid of queries and array genes than this are only a part of it.
FILLED = 0.25

_SCHEMAS = {
    "coverage.studies": pa.schema([("study", pa.string()), ("complete", pa.bool_())]),
    "coverage.queries": pa.schema([("part", pa.int32()), ("genes", pa.list_(pa.int32()))]),
    "coverage.arrays": pa.schema([("part", pa.int32()), ("gene", pa.int32())]),
}


@dataclass(frozen=True, eq=False)
class StudyCoverage:
    """The crosses of one study on one array: every query with every array gene."""

    study: str  # a study with several arrays has one coverage per array
    query_genes: Ints  # the query sets, of one gene or two
    query_offsets: Ints
    array_genes: Ints
    complete: bool  # False if it is a lower bound, derived from a list of hits

    def to_json(self) -> dict[str, Any]:
        sizes = {"queries": len(self.query_offsets) - 1, "array_genes": len(self.array_genes)}
        return {"study": self.study, **sizes, "complete": self.complete}


@dataclass(frozen=True, eq=False)
class Coverage:
    """The coverage of every study and array of a screen."""

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
    ) -> Coverage:
        """Derive the coverage from the rows with one array gene and otherwise query genes.

        `panel` is the array of each genotype; `complete` is False for a list of hits.
        """
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        gene = pl.col("gene")
        rows = (
            pl.DataFrame({"row": owner, "gene": genes, "role": role})
            .group_by("row", maintain_order=True)
            .agg(query=gene.filter(role="query"), array=gene.filter(role="array"), size=pl.len())
            .with_columns(study=study, panel=study if panel is None else panel)
            .filter(
                pl.col("array").list.len() == 1,
                (pl.col("query").list.len() == pl.col("size") - 1) & (pl.col("size") > 1),
            )
            .with_columns(key=pl.col("query").list.sort().cast(pl.List(pl.String)).list.join(" "))
            .explode("array")
        )
        studies = []
        for (name, _), part in rows.group_by("study", "panel", maintain_order=True):
            queries = part.unique("key", keep="first", maintain_order=True)["query"]
            arrays = part["array"].unique().sort().to_numpy()
            filled = part.select("key", "array").n_unique() / (len(queries) * len(arrays))
            sizes = offsets_of(queries.list.len().to_numpy())
            flat = queries.explode().to_numpy()
            studies.append(
                StudyCoverage(str(name), flat, sizes, arrays, complete and filled >= FILLED),
            )
        return cls(tuple(studies))

    def renumbered(self, new_index: Ints) -> Coverage:
        """Return the coverage with new gene indices; -1 marks a removed gene."""
        studies = []
        for s in self.studies:
            genes, sizes = new_index[s.query_genes], np.diff(s.query_offsets)
            gone = repeats_a_gene(genes, s.query_offsets) | sets_with(genes < 0, s.query_offsets)
            queries, offsets = genes[np.repeat(~gone, sizes)], offsets_of(sizes[~gone])
            arrays = new_index[s.array_genes]
            arrays = np.unique(arrays[arrays >= 0])
            studies.append(StudyCoverage(s.study, queries, offsets, arrays, s.complete))
        return Coverage(tuple(studies))

    def only(self, studies: Iterable[str]) -> Coverage:
        wanted = set(studies)
        return Coverage(tuple(s for s in self.studies if s.study in wanted))

    def to_arrow(self) -> dict[str, pa.Table]:
        rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _SCHEMAS}
        for i, s in enumerate(self.studies):
            queries = np.split(s.query_genes, s.query_offsets[1:-1])
            rows["coverage.studies"].append((s.study, s.complete))
            rows["coverage.queries"] += [(i, genes.tolist()) for genes in queries if len(genes)]
            rows["coverage.arrays"] += [(i, gene) for gene in s.array_genes.tolist()]
        return {
            name: pa.table([[row[i] for row in rows[name]] for i in (0, 1)], schema=schema)
            for name, schema in _SCHEMAS.items()
        }

    @classmethod
    def from_arrow(cls, parts: Mapping[str, pa.Table]) -> Coverage:
        described, queries, arrays = (pl.DataFrame(parts[name]) for name in _SCHEMAS)
        studies = []
        for i, (study, complete) in enumerate(described.iter_rows()):
            sets, on_it = queries.filter(part=i)["genes"], arrays.filter(part=i)["gene"]
            genes, array_genes = (c.cast(pl.Int64).to_numpy() for c in (sets.explode(), on_it))
            offsets = offsets_of(sets.list.len().to_numpy())
            studies.append(StudyCoverage(study, genes, offsets, array_genes, complete))
        return cls(tuple(studies))
