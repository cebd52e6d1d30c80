"""From edges as they are written to relations, and plain edge lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.cell.readers import edge_list, recognise
from deltacell.cell.readers.edges import NamedEdges, names_of, relation_of
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.errors import GeneNameError, InputError
from deltacell.sheet import ColumnNames


def edges_of(pairs, *, directed=False, weight=None, left_out=None) -> NamedEdges:
    source, target = (pl.Series([p[i] for p in pairs], dtype=pl.String) for i in (0, 1))
    lines, notes = np.arange(2, len(pairs) + 2), {"rows in the file": 9}
    file = Path("folder/net.tsv"), lines, "abc", "edge_list", notes, left_out or {}
    return NamedEdges("net", source, target, weight, directed, *file)


def test_names_of_every_kind_resolve(genes):
    edges = edges_of([("yal001c", "VPS8"), ("TSV115", "HO")], weight=np.array([0.5, 0.25]))
    relation, source = relation_of(edges, genes)
    assert [list(column) for column in relation.edges()] == [[0, 0], [1, 3], [0.5, 0.25]]
    assert (source.file, source.sha256, source.reader) == ("net.tsv", "abc", "edge_list")
    assert (source.into, source.notes) == ("net", {"rows in the file": 9})
    assert source.counts == relation.counts


@pytest.mark.parametrize(
    ("pairs", "code", "line", "says"),
    [
        ([("YAL001C", "HO"), ("HO", "NOPE1"), ("NOPE2", "HO")], "unknown-gene", 3, "NOPE1"),
        ([("BOTH", "YAL001C")], "ambiguous-gene", 2, "YAL002W (VPS8), YAL003W (EFB1)"),
    ],
)
def test_a_gene_that_does_not_resolve_is_an_error_with_its_line(pairs, code, line, says, genes):
    with pytest.raises(GeneNameError) as caught:
        relation_of(edges_of(pairs), genes)
    error = caught.value
    assert (error.code, error.where, error.line) == (code, Path("folder/net.tsv"), line)
    assert says in error.what


def test_unresolved_rows_are_dropped_with_a_count_by_reason(genes):
    loops = [("YAL001C", "YAL001C"), ("YAL001C", "TFC3")]
    unresolved = [("NOPE", "YAL001C"), ("NOPE", "BOTH"), ("BOTH", "YAL001C")]
    edges = [("YAL001C", "YAL002W"), ("YAL002W", "YAL001C"), ("YAL001C", "VPS8")]
    written = edges_of([*edges[:2], *loops, *unresolved, edges[2]], left_out={"score 0": 4})
    relation, source = relation_of(written, genes, "drop")
    assert source.notes["unknown_genes"] == "NOPE"
    assert source.notes["ambiguous_gene_names"] == "BOTH"
    assert (relation.n_edges, relation.counts.read, relation.counts.resolved) == (1, 12, 9)
    assert relation.counts.dropped == {
        "score 0": 4,
        UNKNOWN_GENE: 2,
        AMBIGUOUS_NAME: 1,
        "self loop": 2,
        "duplicate": 1,
        "other direction of an edge": 1,
    }
    with pytest.raises(ValueError, match="'add'"):
        relation_of(written, genes, "add")  # type: ignore[arg-type]


def test_unknown_genes_can_be_added_first(genes):
    edges = edges_of([("YAL001C", "YNEW1"), ("ynew1", "YNEW2"), ("YNEW2", "vps8")])
    names = names_of(edges)
    assert sorted(names) == ["YAL001C", "YNEW2", "vps8", "ynew1"]
    unknown = [n for n, found in zip(names, genes.resolve(names).found, strict=True) if not found]
    extended = genes.extended(unknown)
    assert len(extended) == len(genes) + 2
    assert relation_of(edges, extended)[0].n_edges == 3


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ABCDX?"), st.sampled_from("ABCDX?")), max_size=30),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_row_is_accounted_for(pairs, directed, n_left_out):
    genes = Genes("ABCD", aliases=[["?"], ["?"], [], []])
    edges = edges_of(pairs, directed=directed, left_out={"score 0": n_left_out})
    relation, source = relation_of(edges, genes, "drop")
    counts = source.counts
    assert counts.read == len(pairs) + n_left_out
    assert counts.kept == relation.n_edges
    assert counts.read == counts.kept + sum(counts.dropped.values())
    inside = [(a, b) for a, b in pairs if a in "ABCD" and b in "ABCD" and a != b]
    distinct = set(inside) if directed else {frozenset(pair) for pair in inside}
    assert relation.n_edges == len(distinct)


HEADERS = [None, ("source", "target"), ("Gene_A", "Gene_B"), ("#node1", "node2"), ("from", "to")]


@pytest.mark.parametrize("separator", ["\t", ",", " ", "   ", ", ", ";", "|"])
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_all_the_ways_to_write_an_edge_list(separator, header, weighted, write):
    rows = [["YAL001C", "VPS8", "0.5"], ["VPS8", "HO", "1e-3"], ["MATa1", "YBR001C-A", "2"]]
    if header:
        rows.insert(0, [*header, "weight"])
    text = "".join(separator.join(row[: 2 + weighted]) + "\n" for row in rows)
    path = write(text, "my.net.txt.gz")
    assert recognise(path) == "edge_list"
    [edges] = edge_list.read(path)
    assert (edges.name, edges.directed) == ("my.net", False)
    assert list(edges.source) == ["YAL001C", "VPS8", "MATa1"]
    assert list(edges.target) == ["VPS8", "HO", "YBR001C-A"]
    assert list(edges.lines) == ([2, 3, 4] if header else [1, 2, 3])
    assert (list(edges.weight) if weighted else edges.weight) == (
        [0.5, 0.001, 2] if weighted else None
    )
    [edges] = edge_list.read(path, name="mine", directed=True)
    assert (edges.name, edges.directed) == ("mine", True)


def test_quotes_are_not_part_of_a_name(write):
    path = write('"source","target","weight"\n"YAL001C","YAL002W",0.5\n', "r.csv")
    assert recognise(path) == "edge_list"
    [edges] = edge_list.read(path)
    assert (list(edges.source), list(edges.target)) == (["YAL001C"], ["YAL002W"])


@pytest.mark.parametrize(
    "text",
    [
        "kinase\tsubstrate\tstrength\nYAL001C\tYAL002W\t0.5\n",
        "gene1\tgene2\tvalue\nYAL001C\tYAL002W\t0.5\n",
        "YAL001C\tYAL002W\t-0.5\nYAL001C\tYAL003W\t0.5\n",
    ],
)
def test_a_number_of_unknown_meaning_is_asked_about(text, write):
    path = write(text)
    assert recognise(path) is None
    assert "--columns" in edge_list.asks(path)
    with pytest.raises(InputError, match="--columns"):
        edge_list.read(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("kinase\tsubstrate\tx\nA1\tB1\t-0.5\n", "gene1=kinase,gene2=substrate,weight=x"),
        ("A1\tB1\t-0.5\nA1\tB2\t0.25\n", "gene1=1,gene2=2,weight=3"),
    ],
)
def test_the_columns_that_are_given_are_read(text, names, write):
    columns = [ColumnNames.parse(names)]
    path = write(text)
    assert recognise(path, columns) == "edge_list"
    [edges] = edge_list.read(path, columns=columns)
    assert (edges.source[0], edges.target[0], edges.weight[0]) == ("A1", "B1", -0.5)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("\nYAL001C\n", "not-an-edge-list"),
        ("\nA1\tB1\t1\t2\n", "not-an-edge-list"),
        ("source\ttarget\n", "empty-file"),
        ("gene1,gene2,weight\nTFC3,VPS8,\nTFC3,EFB1,NA\n", "not-an-edge-list"),
    ],
)
def test_what_is_not_an_edge_list(text, code, write):
    with pytest.raises(InputError) as caught:
        edge_list.read(write(text))
    assert caught.value.code == code
    assert recognise(write("YAL001C\tYAL002W\nsee\tthe\tfile\nof\t1998\n")) is None


@pytest.mark.parametrize("bad", ["YAL009W", "YAL009W\tYAL010C\tstrong"])
def test_a_bad_line_near_the_beginning_is_named(bad, write):
    rows = [f"YAL00{i}C\tYAL00{i + 1}W\t0.{i}" for i in range(1, 7)]
    rows[2] = bad
    path = write("\n".join(rows) + "\n")
    assert recognise(path) == "edge_list"
    with pytest.raises(InputError) as caught:
        edge_list.read(path)
    assert (caught.value.code, caught.value.line) == ("bad-rows", 3)


@pytest.mark.parametrize("separator", [",", "\t", " "])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_without_a_weight_are_left_out_and_counted(separator, header, first, write, genes):
    rows = ["TFC3,VPS8,0.5", "TFC3,EFB1,NA", "VPS8,EFB1,0.25"]
    if separator != " ":
        rows.append("HO,TFC3,")
    rows = rows[first:] + rows[:first]
    lines = ["gene1,gene2,weight", *rows] if header else rows
    path = write("\n".join(lines).replace(",", separator) + "\n")
    assert recognise(path) == "edge_list"
    [edges] = edge_list.read(path)
    assert edges.lines.tolist() == [i for i, line in enumerate(lines, 1) if line.endswith("5")]
    assert sorted(edges.weight) == [0.25, 0.5]
    relation, source = relation_of(edges, genes)
    assert (relation.n_edges, source.counts.dropped) == (2, {"no weight": len(rows) - 2})
