"""The tables of an import as CSV files for ``neo4j-admin database import``.

Nodes are genes, terms, quantities, reactions, clauses of rules, metabolites, pathways, studies and
measurements. A node file has a column ``:ID``, a relationship file ``:START_ID`` and ``:END_ID``;
the header gives the type of each property, and an empty field is a missing one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from deltacell import storage
from deltacell.data.knowledge import Knowledge

#: The kind of the directory of CSV files.
KIND = "neo4j"

SCRIPT = "import.sh"

# Between the entries of a list; neo4j-admin's default.
BETWEEN = ";"

_TYPES: Mapping[type[pl.DataType] | pl.DataType, str] = {
    pl.Boolean: "boolean",
    pl.Float32: "float",
    pl.Float64: "double",
    pl.Int8: "int",
    pl.Int32: "int",
    pl.Int64: "long",
    pl.UInt32: "long",
    pl.String: "string",
    pl.List(pl.String): "string[]",
}


@dataclass(frozen=True)
class NodeFile:
    """Nodes of one label, with properties and a column that identifies them."""

    label: str
    key: str
    table: pl.DataFrame

    def csv(self) -> pl.DataFrame:
        """Return the columns as texts, under the names of a header."""
        columns = [_property(self.table[name]) for name in self.table.columns if name != self.key]
        key = self.table[self.key].cast(pl.String).alias(f"{self.key}:ID({self.label})")
        label = pl.Series(":LABEL", [self.label] * len(self.table), dtype=pl.String)
        return pl.DataFrame([key, *columns, label])


@dataclass(frozen=True)
class RelationshipFile:
    """Relationships from nodes of one label to nodes of another, with properties.

    The column ``type`` of the table is the type of each relationship.
    """

    first: tuple[str, str]  # the label of the nodes and the column of their keys
    second: tuple[str, str]
    table: pl.DataFrame

    def csv(self) -> pl.DataFrame:
        """Return the columns as texts, under the names of a header."""
        ends = []
        for place, (label, column) in (("START", self.first), ("END", self.second)):
            key = self.table[column].cast(pl.String)
            ends.append(key.alias(f":{place}_ID({label})"))
        others = (self.first[1], self.second[1], "type")
        columns = [_property(self.table[name]) for name in self.table.columns if name not in others]
        return pl.DataFrame([*ends, *columns, self.table["type"].alias(":TYPE")])


def write_neo4j(
    knowledge: Knowledge,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write the files and a script that imports them; return the number of rows by file."""
    nodes = nodes_of(knowledge)
    relationships = relationships_of(knowledge)
    rows = {}
    with storage.new_directory(path, KIND, overwrite=overwrite) as temporary:
        described = {}
        files: dict[str, NodeFile | RelationshipFile] = {**nodes, **relationships}
        for name, file in files.items():
            csv = temporary / f"{name}.csv"
            table = file.csv()
            table.write_csv(csv)
            described[name] = {"file": csv.name, "sha256": storage.sha256_of_file(csv)}
            rows[csv.name] = table.height
        script = temporary / SCRIPT
        script.write_text(_script(list(nodes), list(relationships)), encoding="utf-8")
        described["script"] = {"file": SCRIPT, "sha256": storage.sha256_of_file(script)}
        storage.write_manifest(temporary, KIND, described, {})
    return rows


def nodes_of(knowledge: Knowledge) -> dict[str, NodeFile]:
    """Return the nodes by the names of their files."""
    tables = knowledge.tables
    aliases = tables["aliases"].group_by("gene", maintain_order=True).agg("alias")
    genes = tables["genes"].join(aliases, on="gene", how="left", maintain_order="left")
    metabolites = tables["stoichiometry"].select(pl.col("metabolite").unique(maintain_order=True))
    pathways = tables["pathways"].select(pl.col("pathway").unique(maintain_order=True))
    return {
        "genes": NodeFile("Gene", "gene", genes),
        "terms": NodeFile("Term", "number", _terms(tables["annotations"])),
        "quantities": NodeFile("Quantity", "number", _quantities(tables["features"])),
        "reactions": NodeFile("Reaction", "reaction", tables["reactions"]),
        "clauses": NodeFile("Clause", "clause", _clauses(tables["rules"]).select("clause")),
        "metabolites": NodeFile("Metabolite", "metabolite", metabolites),
        "pathways": NodeFile("Pathway", "pathway", pathways),
        "studies": NodeFile("Study", "number", tables["studies"].with_row_index("number")),
        "measurements": NodeFile("Measurement", "measurement", tables["measurements"]),
    }


def relationships_of(knowledge: Knowledge) -> dict[str, RelationshipFile]:
    """Return the relationships by the names of their files."""
    tables = knowledge.tables
    gene = ("Gene", "gene")
    reaction = ("Reaction", "reaction")
    is_directed = tables["relations"].select("relation", "directed")
    edges = tables["edges"].join(is_directed, on="relation", maintain_order="left")
    of_terms = _numbered(tables["annotations"], _terms(tables["annotations"]))
    of_quantities = _numbered(tables["features"], _quantities(tables["features"]))
    studies = tables["studies"].drop("measurements").with_row_index("number")
    of_studies = tables["measurements"].select("measurement", "screen", "study")
    edges = edges.rename({"relation": "type"})
    return {
        "edges": RelationshipFile(("Gene", "source"), ("Gene", "target"), edges),
        "has_term": _typed("HAS_TERM", gene, ("Term", "number"), of_terms.select("gene", "number")),
        "has_value": _typed(
            "HAS_VALUE",
            gene,
            ("Quantity", "number"),
            of_quantities.select("gene", "number", "value"),
        ),
        "in_pathway": _typed("IN_PATHWAY", reaction, ("Pathway", "pathway"), tables["pathways"]),
        "takes_part": _typed(
            "TAKES_PART",
            ("Metabolite", "metabolite"),
            reaction,
            tables["stoichiometry"],
        ),
        "in_clause": _typed(
            "IN_CLAUSE",
            gene,
            ("Clause", "clause"),
            tables["rules"].select("gene", "clause"),
        ),
        "enables": _typed("ENABLES", ("Clause", "clause"), reaction, _clauses(tables["rules"])),
        "of_study": _typed(
            "OF_STUDY",
            ("Measurement", "measurement"),
            ("Study", "number"),
            _numbered(of_studies, studies).select("measurement", "number"),
        ),
        "deletes": _typed("DELETES", ("Measurement", "measurement"), gene, tables["deletions"]),
    }


def _terms(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return every term once, with a number."""
    terms = annotations.select("annotation", "term", "id").unique(maintain_order=True)
    return terms.with_row_index("number")


def _quantities(features: pl.DataFrame) -> pl.DataFrame:
    """Return every quantity once, with a number."""
    return (
        features.select("feature", "quantity").unique(maintain_order=True).with_row_index("number")
    )


def _clauses(rules: pl.DataFrame) -> pl.DataFrame:
    """Return every clause once, with its reaction."""
    return rules.select("clause", "reaction").unique(maintain_order=True)


def _numbered(rows: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the number of the node that has the same values."""
    keys = [name for name in nodes.columns if name != "number"]
    return rows.join(nodes, on=keys, nulls_equal=True, maintain_order="left")


def _typed(
    name: str,
    first: tuple[str, str],
    second: tuple[str, str],
    table: pl.DataFrame,
) -> RelationshipFile:
    return RelationshipFile(first, second, table.with_columns(type=pl.lit(name)))


def _property(values: pl.Series) -> pl.Series:
    """Return a column as texts under the name and the type of its property."""
    name = f"{values.name}:{_TYPES[values.dtype]}"
    if values.dtype == pl.List(pl.String):
        return values.list.join(BETWEEN).alias(name)
    texts = values.cast(pl.String)
    if values.dtype.is_float():
        # As Java reads them.
        texts = texts.replace({"inf": "Infinity", "-inf": "-Infinity"})
    # A field that spans lines would have to be allowed.
    return texts.str.replace_all(r"\s+", " ").alias(name)


def _script(nodes: list[str], relationships: list[str]) -> str:
    """Return a shell script that imports the files into a new database."""
    words = [f"--nodes={name}.csv" for name in nodes]
    words += [f"--relationships={name}.csv" for name in relationships]
    lines = " \\\n  ".join(shlex.quote(word) for word in words)
    return (
        "#!/bin/sh\n"
        "# Import these files into a database that does not exist yet: sh import.sh NAME\n"
        'cd "$(dirname "$0")" || exit\n'
        f'exec neo4j-admin database import full "${{1:-neo4j}}" \\\n  {lines}\n'
    )
