"""What is known of a cell and measured in its screens, as tables that SQL can join.

`knowledge_of` makes the tables of an import. Genes are given by their systematic names in all of
them, so that tables are joined by these; a missing number is NULL, never NaN. `write_knowledge`
writes them as Parquet files, which other programs can read, and `Knowledge.load` opens these or an
import. docs/how-to/questions.md asks ten questions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars import selectors

from deltacell import storage
from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import written
from deltacell.cell import Annotation, Cell, Feature, Genes, Metabolism, Relation
from deltacell.data.imported import Imported, open_screen
from deltacell.screen.screen import Screen
from deltacell.storage.sql import run_sql

#: The kind of the directory of Parquet files.
KIND = "tables"

# SQL on the tables of one screen, see `Screen.query`.
_OF_A_SCREEN = re.compile(r'\b(?:from|join)\s+"?(?:screen|deleted)\b', re.IGNORECASE)

_RESULT_SUFFIXES = (".parquet", ".csv", ".tsv", ".json")

_TEXT = pl.String
_COLUMNS: dict[str, dict[str, Any]] = {
    "genes": {
        **{"gene": _TEXT, "name": _TEXT, "chromosome": _TEXT},
        **{"first_base": pl.Int64, "last_base": pl.Int64, "description": _TEXT},
    },
    "aliases": {"gene": _TEXT, "alias": _TEXT},
    "relations": {"relation": _TEXT, "directed": pl.Boolean, "edges": pl.Int64},
    "edges": {"relation": _TEXT, "source": _TEXT, "target": _TEXT, "weight": pl.Float32},
    "annotations": {"annotation": _TEXT, "term": _TEXT, "id": _TEXT, "gene": _TEXT},
    "features": {"feature": _TEXT, "quantity": _TEXT, "gene": _TEXT, "value": pl.Float32},
    "reactions": {"reaction": _TEXT, "lower": pl.Float64, "upper": pl.Float64},
    "pathways": {"pathway": _TEXT, "reaction": _TEXT},
    "stoichiometry": {"reaction": _TEXT, "metabolite": _TEXT, "coefficient": pl.Float64},
    "rules": {"reaction": _TEXT, "clause": pl.Int64, "gene": _TEXT},
    "studies": {"screen": _TEXT, "study": _TEXT, "measurements": pl.UInt32},
    "measurements": {
        **{"measurement": pl.Int64, "screen": _TEXT, "study": _TEXT, "phenotype": _TEXT},
        **{"n_genes": pl.Int64, "score": pl.Float32, "sign": pl.Int8},
        **{"standard_deviation": pl.Float32, "p_value": pl.Float64},
        **{"query_fitness": pl.Float32, "array_fitness": pl.Float32, "replicates": pl.Int32},
    },
    "deletions": {
        **{"measurement": pl.Int64, "gene": _TEXT},
        **{"role": _TEXT, "perturbation": _TEXT, "allele": _TEXT},
    },
    "pairs": {
        **{"measurement": pl.Int64, "screen": _TEXT, "study": _TEXT, "phenotype": _TEXT},
        **{"gene1": _TEXT, "gene2": _TEXT, "score": pl.Float32, "p_value": pl.Float64},
    },
}


#: The columns of every table.
SCHEMAS = {name: pl.Schema(columns) for name, columns in _COLUMNS.items()}


@dataclass(frozen=True)
class Knowledge:
    """Tables by the names in `SCHEMAS`, which SQL can join."""

    tables: Mapping[str, pl.DataFrame]

    def query(self, sql: str) -> pl.DataFrame:
        """Run SQL on the tables; it has access to nothing else."""
        return run_sql({name: table.to_arrow() for name, table in self.tables.items()}, sql)

    @cached_property
    def genes(self) -> Genes:
        """The genes of the tables, by which a result becomes a screen, see `Screen.from_query`."""
        aliases = self.tables["aliases"].group_by("gene", maintain_order=True).agg("alias")
        table = self.tables["genes"].join(aliases, on="gene", how="left", maintain_order="left")
        return Genes(
            table["gene"].to_list(),
            standard=table["name"].to_list(),
            aliases=[names or () for names in table["alias"].to_list()],
            chromosome=table["chromosome"].to_list(),
            start=table["first_base"].to_list(),
            end=table["last_base"].to_list(),
            description=table["description"].to_list(),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Knowledge:
        """Open the tables of `write_knowledge`, or make those of an import."""
        path = Path(path)
        manifest = storage.read_manifest(path)
        if manifest["kind"] == "import":
            return knowledge_of(Imported.load(path))
        if manifest["kind"] != KIND:
            message = f"expected an import or its tables, but found a saved {manifest['kind']}"
            raise StoreError(message, code="wrong-kind", where=path)
        return cls({name: _read_table(path, name, manifest) for name in SCHEMAS})


def knowledge_of(imported: Imported) -> Knowledge:
    """Return the tables of a cell and its screens."""
    cell = imported.cell
    names = pl.Series("gene", cell.genes.systematic, dtype=pl.String)
    tables = {
        "genes": _genes(cell.genes),
        "aliases": _aliases(cell.genes),
        "relations": _relations(cell),
        "edges": _together("edges", (_edges(r, names) for r in cell.relations.values())),
        "annotations": _together(
            "annotations",
            (_annotations(annotation, names) for annotation in cell.annotations.values()),
        ),
        "features": _together("features", (_features(f, names) for f in cell.features.values())),
        **_metabolism(cell.metabolism, names),
        **_measurements(imported.screens),
    }
    return Knowledge({name: tables[name].cast(SCHEMAS[name]) for name in SCHEMAS})


def _together(name: str, frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the columns of a table, of frames below each other; no rows if there are none."""
    empty = pl.DataFrame(schema=SCHEMAS[name])
    parts = [frame.select(empty.columns).cast(empty.schema) for frame in frames]
    return pl.concat([empty, *parts])


def _genes(genes: Genes) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "gene": genes.systematic,
            "name": genes.standard,
            "chromosome": genes.chromosome,
            "first_base": genes.start,
            "last_base": genes.end,
            "description": genes.description,
        },
        SCHEMAS["genes"],
    )
    is_placed = pl.col("first_base", "last_base") >= 0
    texts = pl.col("chromosome", "description")
    return frame.with_columns(
        pl.when(texts != "").then(texts),
        pl.when(is_placed).then(pl.col("first_base", "last_base")),
    )


def _aliases(genes: Genes) -> pl.DataFrame:
    columns = {"gene": genes.systematic, "alias": list(map(list, genes.aliases))}
    frame = pl.DataFrame(columns, {"gene": pl.String, "alias": pl.List(pl.String)})
    return frame.explode("alias").drop_nulls()


def _relations(cell: Cell) -> pl.DataFrame:
    relations = cell.relations.values()
    columns = {
        "relation": [relation.name for relation in relations],
        "directed": [relation.directed for relation in relations],
        "edges": [relation.n_edges for relation in relations],
    }
    return pl.DataFrame(columns, SCHEMAS["relations"])


def _edges(relation: Relation, names: pl.Series) -> pl.DataFrame:
    """Return every edge once; the source of an undirected edge is the gene that comes first."""
    edges = relation.edges()
    return pl.DataFrame(
        {
            "source": names.gather(edges.source),
            "target": names.gather(edges.target),
            "weight": edges.weight,
        },
    ).with_columns(relation=pl.lit(relation.name))


def _annotations(annotation: Annotation, names: pl.Series) -> pl.DataFrame:
    pairs = annotation.matrix.tocoo()
    terms = pl.Series(annotation.terms, dtype=pl.String).gather(pairs.col)
    ids = pl.Series(annotation.ids, dtype=pl.String).gather(pairs.col)
    frame = pl.DataFrame({"term": terms, "id": ids, "gene": names.gather(pairs.row)})
    has_id = pl.col("id") != ""
    return frame.with_columns(
        pl.when(has_id).then("id").alias("id"),
        annotation=pl.lit(annotation.name),
    )


def _features(feature: Feature, names: pl.Series) -> pl.DataFrame:
    """Return the values that are known."""
    gene, column = np.nonzero(~np.isnan(feature.values))
    quantities = pl.Series(feature.columns, dtype=pl.String)
    return pl.DataFrame(
        {
            "quantity": quantities.gather(column),
            "gene": names.gather(gene),
            "value": feature.values[gene, column],
        },
    ).with_columns(feature=pl.lit(feature.name))


def _metabolism(metabolism: Metabolism | None, names: pl.Series) -> dict[str, pl.DataFrame]:
    """Return the tables of reactions, pathways, stoichiometry and rules."""
    if metabolism is None:
        kinds = ("reactions", "pathways", "stoichiometry", "rules")
        return {name: pl.DataFrame(schema=SCHEMAS[name]) for name in kinds}
    reactions = pl.Series(metabolism.reactions, dtype=pl.String)
    metabolites = pl.Series(metabolism.metabolites, dtype=pl.String)
    pathways = list(map(list, metabolism.pathways)) or [[]] * metabolism.n_reactions
    of_reactions = pl.DataFrame(
        {"pathway": pathways, "reaction": reactions},
        {"pathway": pl.List(pl.String), "reaction": pl.String},
    )
    n_genes = np.diff(metabolism.clause_offsets)
    clause = np.repeat(np.arange(len(n_genes)), n_genes)
    return {
        "reactions": pl.DataFrame(
            {"reaction": reactions, "lower": metabolism.lower, "upper": metabolism.upper},
        ),
        "pathways": of_reactions.explode("pathway").drop_nulls(),
        "stoichiometry": pl.DataFrame(
            {
                "reaction": reactions.gather(metabolism.reaction),
                "metabolite": metabolites.gather(metabolism.metabolite),
                "coefficient": metabolism.coefficient,
            },
        ),
        "rules": pl.DataFrame(
            {
                "reaction": reactions.gather(metabolism.clause_reaction[clause]),
                "clause": clause,
                "gene": names.gather(metabolism.clause_genes),
            },
        ),
    }


def _measurements(screens: Mapping[str, Screen]) -> dict[str, pl.DataFrame]:
    """Return the tables of studies, measurements, deletions and pairs of all screens."""
    rows = []
    deletions = []
    n_before = 0
    for name, screen in screens.items():
        number = pl.Series("measurement", np.arange(n_before, n_before + len(screen)))
        n_genes = pl.Series("n_genes", np.diff(screen.offsets))
        rows.append(screen.rows.with_columns(number, n_genes, screen=pl.lit(name)))
        systematic = pl.Series(screen.genes.systematic, dtype=pl.String)
        owner = number.gather(screen.genotypes.owner.numpy())
        gene = systematic.gather(screen.deleted["gene"])
        deletions.append(screen.deleted.with_columns(owner.alias("measurement"), gene=gene))
        n_before += len(screen)
    measurements = _together("measurements", rows).with_columns(
        pl.col(pl.Float32, pl.Float64).fill_nan(None),
    )
    of_measurements = _together("deletions", deletions)
    studies = measurements.group_by("screen", "study", maintain_order=True)
    return {
        "studies": studies.agg(pl.len().alias("measurements")),
        "measurements": measurements,
        "deletions": of_measurements,
        "pairs": _pairs(measurements, of_measurements),
    }


def _pairs(measurements: pl.DataFrame, deletions: pl.DataFrame) -> pl.DataFrame:
    """Return the measurements of two genes, of which ``gene1`` comes first in the alphabet."""
    gene = pl.col("gene")
    by_measurement = deletions.group_by("measurement", maintain_order=True)
    ends = by_measurement.agg(gene.min().alias("gene1"), gene.max().alias("gene2"))
    of_two = measurements.filter(pl.col("n_genes") == 2)
    pairs = of_two.join(ends, on="measurement", how="inner", maintain_order="left")
    return pairs.select(list(SCHEMAS["pairs"]))


def write_knowledge(
    knowledge: Knowledge,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Write the tables as Parquet files into a directory, all of them or nothing."""
    with storage.new_directory(path, KIND, overwrite=overwrite) as temporary:
        described = {}
        for name, table in knowledge.tables.items():
            file = temporary / f"{name}.parquet"
            table.write_parquet(file)
            sha256 = storage.sha256_of_file(file)
            described[name] = {"file": file.name, "rows": table.height, "sha256": sha256}
        storage.write_manifest(temporary, KIND, described, {})


def _read_table(path: Path, name: str, manifest: Mapping[str, Any]) -> pl.DataFrame:
    """Read a table; raise if it is not the one that was written."""
    file = path / f"{name}.parquet"
    described = manifest["parts"].get(name)
    if described is None or not file.is_file():
        is_whole = False
    else:
        is_whole = storage.sha256_of_file(file) == described["sha256"]
    if not is_whole:
        message = "the contents do not match the checksum in the manifest"
        fix = "Restore the directory from a copy, or create it again from the import."
        raise StoreError(message, code="damaged", where=file, fix=fix)
    return pl.read_parquet(file)


def query(path: str | os.PathLike[str], sql: str, *, screen: str | None = None) -> pl.DataFrame:
    """Run SQL on the tables of a cell and all its screens, or on those of one screen.

    Args:
        path: An import, its tables, or a screen.
        sql: On the tables in `SCHEMAS`; or on ``screen`` and ``deleted``, see `Screen.query`.
        screen: The name of the screen, if an import has several and the SQL is on one.
    """
    kind = storage.read_manifest(path)["kind"]
    is_of_a_screen = screen is not None or _OF_A_SCREEN.search(sql) is not None
    if kind == KIND or (kind == "import" and not is_of_a_screen):
        return Knowledge.load(path).query(sql)
    return open_screen(path, screen).query(sql)


def write_result(table: pl.DataFrame, path: Path) -> None:
    """Write the result of a query as Parquet, JSON, or comma- or tab-separated text."""
    suffix = path.suffix.lower()
    if suffix not in _RESULT_SUFFIXES:
        message = f"the file is a {suffix}; expected {', '.join(_RESULT_SUFFIXES)} or a directory"
        raise InputError(message, code="wrong-suffix", where=path)
    with written(path, "the result") as temporary:
        if suffix == ".parquet":
            table.write_parquet(temporary)
        elif suffix == ".json":
            table.write_json(temporary)
        else:
            separator = "\t" if suffix == ".tsv" else ","
            with_flat_columns(table).write_csv(temporary, separator=separator)


def with_flat_columns(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose lists and structs are texts, as CSV files need them."""

    def text(value: Any) -> str:
        return str(value) if isinstance(value, dict) else " ".join(map(str, value.to_list()))

    return table.with_columns(selectors.nested().map_elements(text, return_dtype=pl.String))
