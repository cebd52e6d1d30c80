"""Which genotypes were tested: a genotype that is not in a list of hits may have been tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.base.arrays import Ints, offsets_of
from deltacell.base.files import JsonObject
from deltacell.screen.genotypes import repeats_a_gene, sets_with

#: Rows that cover less of the grid of queries and array genes than this are only a part of it.
FILLED = 0.25

_STUDIES = "coverage.studies"
_QUERIES = "coverage.queries"
_ARRAYS = "coverage.arrays"
_SCHEMAS = {
    _STUDIES: pa.schema([("study", pa.string()), ("complete", pa.bool_())]),
    _QUERIES: pa.schema([("part", pa.int32()), ("genes", pa.list_(pa.int32()))]),
    _ARRAYS: pa.schema([("part", pa.int32()), ("gene", pa.int32())]),
}


@dataclass(frozen=True, eq=False)
class StudyCoverage:
    """The crosses of one study on one array: every query with every array gene."""

    study: str  # a study with several arrays has one coverage per array
    query_genes: Ints  # the query sets, of one gene or two
    query_offsets: Ints
    array_genes: Ints
    complete: bool  # False if it is a lower bound, derived from a list of hits

    def to_json(self) -> JsonObject:
        """Return its sizes as a JSON-serialisable dict."""
        return {
            "study": self.study,
            "queries": len(self.query_offsets) - 1,
            "array_genes": len(self.array_genes),
            "complete": self.complete,
        }

    def renumbered(self, new_index: Ints) -> StudyCoverage:
        """Return the coverage with new gene indices; -1 marks a removed gene.

        Queries with a removed gene, or of which two genes are now one, are left out.
        """
        genes = new_index[self.query_genes]
        sizes = np.diff(self.query_offsets)
        lacks_a_gene = sets_with(genes < 0, self.query_offsets)
        is_kept = ~(lacks_a_gene | repeats_a_gene(genes, self.query_offsets))
        arrays = new_index[self.array_genes]
        return StudyCoverage(
            self.study,
            genes[np.repeat(is_kept, sizes)],
            offsets_of(sizes[is_kept]),
            np.unique(arrays[arrays >= 0]),
            self.complete,
        )


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

        Args:
            genes: The genes of all genotypes.
            offsets: Where each genotype begins in `genes`, [genotypes + 1].
            role: Of each gene: ``query``, ``array`` or ``unknown``.
            study: Of each genotype.
            panel: The array of each genotype, if a study has several.
            complete: False for a list of hits.
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
        for (name, _), crosses in rows.group_by("study", "panel", maintain_order=True):
            queries = crosses.unique("key", keep="first", maintain_order=True)["query"]
            arrays = crosses["array"].unique().sort().to_numpy()
            n_possible = len(queries) * len(arrays)
            filled = crosses.select("key", "array").n_unique() / n_possible
            studies.append(
                StudyCoverage(
                    str(name),
                    queries.explode().to_numpy(),
                    offsets_of(queries.list.len().to_numpy()),
                    arrays,
                    complete and filled >= FILLED,
                ),
            )
        return cls(tuple(studies))

    def renumbered(self, new_index: Ints) -> Coverage:
        """Return the coverage with new gene indices; -1 marks a removed gene."""
        return Coverage(tuple(study.renumbered(new_index) for study in self.studies))

    def only(self, studies: Iterable[str]) -> Coverage:
        """Return the coverage of some studies, by their names."""
        wanted = set(studies)
        return Coverage(tuple(s for s in self.studies if s.study in wanted))

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return tables of the studies, of their queries and of their array genes."""
        studies = [{"study": s.study, "complete": s.complete} for s in self.studies]
        queries = []
        arrays = []
        for part, study in enumerate(self.studies):
            sets = np.split(study.query_genes, study.query_offsets[1:-1])
            queries += [{"part": part, "genes": genes.tolist()} for genes in sets if len(genes)]
            arrays += [{"part": part, "gene": gene} for gene in study.array_genes.tolist()]
        return {
            _STUDIES: pa.Table.from_pylist(studies, _SCHEMAS[_STUDIES]),
            _QUERIES: pa.Table.from_pylist(queries, _SCHEMAS[_QUERIES]),
            _ARRAYS: pa.Table.from_pylist(arrays, _SCHEMAS[_ARRAYS]),
        }

    @classmethod
    def from_arrow(cls, parts: Mapping[str, pa.Table]) -> Coverage:
        """Return the coverage of tables that `to_arrow` made."""
        all_queries = pl.DataFrame(parts[_QUERIES])
        all_arrays = pl.DataFrame(parts[_ARRAYS])
        studies = []
        for part, (study, complete) in enumerate(pl.DataFrame(parts[_STUDIES]).iter_rows()):
            queries = all_queries.filter(part=part)["genes"]
            array_genes = all_arrays.filter(part=part)["gene"]
            studies.append(
                StudyCoverage(
                    study,
                    queries.explode().cast(pl.Int64).to_numpy(),
                    offsets_of(queries.list.len().to_numpy()),
                    array_genes.cast(pl.Int64).to_numpy(),
                    complete,
                ),
            )
        return cls(tuple(studies))
