"""The CSV files for Neo4j, read back by their headers: they hold all that the tables hold."""

import os
import re
import subprocess

import polars as pl
import pytest

from deltacell.cell import Annotation, Cell, Genes
from deltacell.data.imported import Imported
from deltacell.data.knowledge import knowledge_of
from deltacell.data.neo4j import write_neo4j
from deltacell.screen import Screen

TYPES = {
    "boolean": pl.Boolean,
    "float": pl.Float32,
    "double": pl.Float64,
    "int": pl.Int64,
    "long": pl.Int64,
    "string": pl.String,
}
FIELD = re.compile(r"(\w*):(\w+(?:\[\])?)(?:\((\w+)\))?")


@pytest.fixture(scope="module")
def tables():
    """The tables of the demo cell, with names that a CSV file has to quote."""
    cell = Cell.synthetic("demo")
    columns = cell.genes.columns()
    columns["description"] = ['a "quoted" word, and a comma'] + ["Infinity"] * (len(cell.genes) - 1)
    columns["aliases"] = [("old-1", "old,2"), *[()] * (len(cell.genes) - 1)]
    pairs = ([0, 1, 1], [0, 0, 1])
    terms = Annotation.from_pairs("GO", *pairs, ["a; b", 'c"d'], n_genes=cell.n_genes)
    parts = (cell.relations, cell.metabolism, cell.features, [terms])
    named = Cell(Genes(**columns), *parts, synthetic=cell.synthetic_recipe)
    screens = {"first": Screen.synthetic(named, n=300), "second": Screen.synthetic(named, n=40)}
    return knowledge_of(Imported(named, screens)).tables


@pytest.fixture(scope="module")
def files(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("neo4j") / "graph"
    write_neo4j(knowledge_of_tables(tables), folder)
    return folder


def knowledge_of_tables(tables):
    from deltacell.data.knowledge import Knowledge

    return Knowledge(tables)


def read(path):
    """Read a file as neo4j-admin does; the kinds of its columns are by their new names."""
    text = pl.read_csv(path, infer_schema=False)
    columns = []
    kinds = {}
    for header in text.columns:
        name, kind, space = field(header)
        values = text[header]
        if kind.endswith("[]"):
            values = values.str.split(";")
        elif kind in TYPES:
            values = cast(values, TYPES[kind])
        columns.append(values.alias(name))
        kinds[name] = (kind, space)
    return pl.DataFrame(columns), kinds


def field(header):
    """Return the name of a column, its type, and the ID space if it has one."""
    name, kind, space = FIELD.fullmatch(header).groups()
    return name or kind, kind, space


def cast(values, dtype):
    if dtype == pl.Boolean:
        assert set(values.drop_nulls()) <= {"true", "false"}
        return values == "true"
    return values.cast(dtype)


def nodes(files, name, label):
    table, kinds = read(files / f"{name}.csv")
    [key] = [column for column, (kind, _) in kinds.items() if kind == "ID"]
    assert kinds[key][1] == label
    assert set(table["LABEL"]) == {label}
    assert table[key].n_unique() == len(table)
    assert table[key].null_count() == 0
    return table.drop("LABEL").rename({key: "key"})


def relationships(files, name, first, second):
    table, kinds = read(files / f"{name}.csv")
    assert kinds["START_ID"] == ("START_ID", first)
    assert kinds["END_ID"] == ("END_ID", second)
    return table


def same(table, expected, columns):
    """Compare without regard to the order of rows and the widths of numbers."""
    wide = pl.col(pl.Int8, pl.Int32, pl.UInt32).cast(pl.Int64)
    rows = expected.select(columns).with_columns(wide).rows()
    key = str
    assert sorted(table.select(columns).rows(), key=key) == sorted(rows, key=key)
    assert rows


def test_genes_have_all_their_names_and_places(files, tables):
    genes = nodes(files, "genes", "Gene").rename({"key": "gene"})
    columns = ["gene", "name", "chromosome", "first_base", "last_base", "description"]
    same(genes, tables["genes"], columns)
    aliases = genes.select("gene", alias="alias").explode("alias").drop_nulls()
    same(aliases, tables["aliases"], ["gene", "alias"])


def test_edges_have_their_relation_as_their_type(files, tables):
    edges = relationships(files, "edges", "Gene", "Gene")
    edges = edges.rename({"START_ID": "source", "END_ID": "target", "TYPE": "relation"})
    same(edges, tables["edges"], ["relation", "source", "target", "weight"])
    counted = edges.group_by("relation", "directed").len("edges")
    same(counted, tables["relations"], ["relation", "directed", "edges"])


def joined(files, name, gene_first, label, node_file):
    first, second = ("Gene", label) if gene_first else (label, "Gene")
    table = relationships(files, name, first, second)
    of_nodes = nodes(files, node_file, label)
    return table.join(of_nodes, left_on="END_ID", right_on="key").rename({"START_ID": "gene"})


def test_terms_and_quantities_are_nodes(files, tables):
    terms = joined(files, "has_term", True, "Term", "terms")
    same(terms, tables["annotations"], ["annotation", "term", "id", "gene"])
    values = joined(files, "has_value", True, "Quantity", "quantities")
    same(values, tables["features"], ["feature", "quantity", "gene", "value"])


def test_the_metabolism_is_a_graph(files, tables):
    reactions = nodes(files, "reactions", "Reaction").rename({"key": "reaction"})
    same(reactions, tables["reactions"], ["reaction", "lower", "upper"])
    parts = relationships(files, "takes_part", "Metabolite", "Reaction")
    parts = parts.rename({"START_ID": "metabolite", "END_ID": "reaction"})
    same(parts, tables["stoichiometry"], ["reaction", "metabolite", "coefficient"])
    assert set(parts["metabolite"]) == set(nodes(files, "metabolites", "Metabolite")["key"])
    pathways = relationships(files, "in_pathway", "Reaction", "Pathway")
    pathways = pathways.rename({"START_ID": "reaction", "END_ID": "pathway"})
    same(pathways, tables["pathways"], ["pathway", "reaction"])
    genes = relationships(files, "in_clause", "Gene", "Clause")
    enables = relationships(files, "enables", "Clause", "Reaction")
    assert set(enables["START_ID"]) == set(nodes(files, "clauses", "Clause")["key"])
    rules = genes.join(enables, left_on="END_ID", right_on="START_ID")
    rules = rules.select(
        gene="START_ID",
        clause=pl.col("END_ID").cast(pl.Int64),
        reaction="END_ID_right",
    )
    same(rules, tables["rules"], ["reaction", "clause", "gene"])


def test_measurements_have_their_study_and_their_deletions(files, tables):
    rows = nodes(files, "measurements", "Measurement")
    rows = rows.with_columns(measurement=pl.col("key").cast(pl.Int64))
    same(rows, tables["measurements"], tables["measurements"].columns)
    studies = nodes(files, "studies", "Study")
    same(studies, tables["studies"], ["screen", "study", "measurements"])
    of_study = relationships(files, "of_study", "Measurement", "Study")
    counted = of_study.group_by("END_ID").len("measurements")
    counted = counted.join(studies.drop("measurements"), left_on="END_ID", right_on="key")
    same(counted, tables["studies"], ["screen", "study", "measurements"])
    deletes = relationships(files, "deletes", "Measurement", "Gene").rename({"END_ID": "gene"})
    deletes = deletes.with_columns(measurement=pl.col("START_ID").cast(pl.Int64))
    same(deletes, tables["deletions"], tables["deletions"].columns)


def test_the_script_names_every_file(files, tmp_path):
    admin = tmp_path / "neo4j-admin"
    admin.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    admin.chmod(0o755)
    command = ["sh", str(files / "import.sh"), "yeast"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:4] == ["database", "import", "full", "yeast"]
    given = {word.partition("=")[2] for word in words[4:]}
    assert given == {path.name for path in files.glob("*.csv")}
    nodes_given = {word.partition("=")[2] for word in words if word.startswith("--nodes=")}
    has_id = {
        path.name for path in files.glob("*.csv") if ":ID(" in path.read_text().split("\n")[0]
    }
    assert nodes_given == has_id
