"""Networks: every format, plain edge lists, and the way from names to a relation."""

import hashlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.base.errors import GeneNameError
from deltacell.cell import Genes
from deltacell.cell.readers import CELL_READERS
from deltacell.cell.readers.networks import NamedEdges, unclear
from deltacell.storage.provenance import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.storage.tables import ColumnNames, File
from deltacell_dev.bench.faults import SAMPLES

READERS = {reader.name: reader for reader in CELL_READERS}
# The field of the last line of a sample that must be a number, and one that must be a name.
SCORES = {
    **{"string_adjacency": 2, "string_detailed": 7, "string_physical": 2},
    **{"string_actions": 6, "yeastract": 2},
}
NAMES = {
    **{"string_physical": 0, "string_detailed": 1, "string_actions": 1},
    **{"biogrid": 1, "yeastract": 0, "tflink": 5},
}


def edges_of(pairs, *, directed=False, weight=None, left_out=None):
    frame = pl.DataFrame(pairs, {"source": pl.String, "target": pl.String}, orient="row")
    frame = frame.with_columns(line=pl.Series(np.arange(2, len(pairs) + 2)))
    frame = frame if weight is None else frame.with_columns(weight=pl.Series(weight))
    file = Path("folder/net.tsv"), "abc", "edge_list", directed
    return NamedEdges("net", frame, *file, {"note": 9}, left_out or {})


def arrows(relation):
    columns = (column.round(6).tolist() for column in relation.edges())
    return [(a, b, round(w, 6)) for a, b, w in sorted(zip(*columns, strict=True))]


def read(name, path):
    return READERS[name].read(path)


@pytest.mark.parametrize(
    ("pairs", "code", "line", "names"),
    [
        ([("YAL001C", "HO"), ("HO", "NOPE1"), ("NOPE2", "HO")], "unknown-gene", 3, "NOPE1, NOPE2"),
        ([("SHARED", "YAL001C")], "ambiguous-gene", 2, "SHARED"),
        ([("SHARED", "NOPE")], "unknown-gene", 2, "NOPE"),
    ],
)
def test_genes_that_do_not_resolve_are_an_error(pairs, code, line, names, genes, refused):
    error = refused(code, lambda: edges_of(pairs).on(genes))
    assert isinstance(error, GeneNameError)
    assert (error.line, [*error.fields.values()]) == (line, [names])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ABCDX?"), st.sampled_from("ABCDX?")), max_size=30),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_row_is_accounted_for(pairs, directed, n_left_out):
    genes = Genes("ABCD", aliases=[["?"], ["?"], [], []])
    edges = edges_of(pairs, directed=directed, left_out={"score 0": n_left_out})
    relation, source = edges.on(genes, "drop")
    counts = source.counts
    assert counts.read == len(pairs) + n_left_out == counts.kept + sum(counts.dropped.values())
    unknown = sum("X" in pair for pair in pairs)
    ambiguous = sum("?" in pair and "X" not in pair for pair in pairs)
    for why, n in (("score 0", n_left_out), (UNKNOWN_GENE, unknown), (AMBIGUOUS_NAME, ambiguous)):
        assert counts.dropped.get(why, 0) == n
    assert source.notes["note"] == 9
    assert source.notes.get("unknown_genes", "") == "X" * bool(unknown)
    assert ("ambiguous_gene_names" in source.notes) == any("?" in pair for pair in pairs)
    inside = [(a, b) for a, b in pairs if a in "ABCD" and b in "ABCD" and a != b]
    distinct = set(inside) if directed else {frozenset(pair) for pair in inside}
    assert counts.kept == relation.n_edges == len(distinct)


HEADERS = [None, ("source", "target"), ("Gene_A", "Gene_B"), ("#node1", "node2"), ("from", "to")]


@pytest.mark.parametrize("separator", ["\t", ", ", "   ", ";", "|"])
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_all_the_ways_to_write_an_edge_list(separator, header, weighted, write, reader_of):
    rows = [["YAL001C", "VPS8", "0.5"], ["VPS8", "HO", "1e-3"], ["MATa1", "YBR001C-A", "2"]]
    if header:
        rows.insert(0, [*header, "weight"])
    text = "".join(separator.join(row[: 2 + weighted]) + "\n" for row in rows)
    path = write(text, "my.net.txt.gz")
    assert reader_of(path) == "edge_list"
    [edges] = read("edge_list", path)
    assert (edges.name, edges.directed) == ("my.net", False)
    assert list(edges.frame["source"]) == ["YAL001C", "VPS8", "MATa1"]
    assert list(edges.frame["target"]) == ["VPS8", "HO", "YBR001C-A"]
    assert list(edges.frame["line"]) == ([2, 3, 4] if header else [1, 2, 3])
    if weighted:
        assert list(edges.frame["weight"]) == [0.5, 0.001, 2]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("kinase\tsubstrate\tx\nA1\tB1\t-0.5\n", "gene1=kinase,gene2=substrate,weight=x"),
        ("gene1\tgene2\tvalue\nA1\tB1\t-0.5\n", "gene1=gene1,gene2=gene2,weight=value"),
        ("A1\tB1\t-0.5\nA1\tB2\t0.25\n", "gene1=1,gene2=2,weight=3"),
    ],
)
def test_a_number_of_unknown_meaning_is_asked_about(text, names, write, reader_of):
    path, columns = write(text), [ColumnNames.parse(names)]
    assert reader_of(path) is None
    assert unclear(File(path))[2] in names
    assert reader_of(path, columns) == "edge_list"
    [edges] = READERS["edge_list"].read(path, columns)
    assert edges.frame.select("source", "target", "weight").row(0) == ("A1", "B1", -0.5)


@pytest.mark.parametrize(
    "text",
    [
        *("\nA1\n", "\nA1\tB1\t1\t2\n", "0.5\t0.25\n0.125\t1\n", "", "\n\n", '{"a": 1}\n'),
        "gene1,gene2,weight\nTFC3,VPS8,\nTFC3,EFB1,NA\n",
        "YAL001C\tYAL002W\nsee\tthe\tfile\nof\t1998\n",
        "# A heading\n\nSome prose, which is not data. It goes on.\n",
        "sample,expression\nwater,0.5\nsalt,0.25\n",
        bytes(range(256)) * 8,
    ],
)
def test_texts_that_are_no_edge_lists_are_refused(text, write, reader_of, refused):
    path = write(text)
    assert reader_of(path) is None
    refused("other-format", lambda: read("edge_list", path))
    refused("empty-file", lambda: read("edge_list", write("source\ttarget\n")))


@pytest.mark.parametrize("bad", ["YAL009W", "YAL009W\tYAL010C\tstrong"])
def test_a_bad_line_near_the_beginning_is_named(bad, write, reader_of, refused):
    rows = [f"YAL00{i}C\tYAL00{i + 1}W\t0.{i}" for i in range(1, 7)]
    rows[2] = bad
    path = write("\n".join(rows) + "\n")
    assert reader_of(path) == "edge_list"
    assert refused("bad-rows", lambda: read("edge_list", path)).line == 3


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_without_a_weight_are_left_out_and_counted(header, first, write, genes):
    rows = ["TFC3,VPS8,0.5", "TFC3,EFB1,NA", "VPS8,EFB1,0.25", "HO,TFC3,"]
    rows = rows[first:] + rows[:first]
    lines = ["gene1,gene2,weight", *rows] if header else rows
    [edges] = read("edge_list", write("\n".join(lines) + "\n"))
    kept = [i for i, line in enumerate(lines, 1) if line.endswith("5")]
    assert edges.frame["line"].to_list() == kept
    relation, source = edges.on(genes)
    assert (relation.n_edges, source.counts.dropped) == (2, {"no weight": 2})


@pytest.fixture
def beside(write):
    """A gene list in the same folder, for the adjacency format."""
    return write(SAMPLES["string_genes"], "genes.txt")


@pytest.mark.parametrize("name", sorted({*SCORES, *NAMES}))
def test_a_published_format_is_known_by_its_content_and_bad_rows_are_named(
    name,
    write,
    beside,
    reader_of,
    refused,
):
    sample, separator = SAMPLES[name], " " if name[7:] in ("detailed", "physical") else "\t"
    plain, packed = write(sample, "any.dat"), write(sample, "any.txt.gz")
    assert reader_of(plain) == reader_of(packed) == name
    plain.rename(plain.with_name("any.txt"))
    frames = [[e.frame for e in read(name, p)] for p in (plain.with_name("any.txt"), packed)]
    assert all(one.equals(other) for one, other in zip(*frames, strict=True))
    last, line = sample.splitlines()[-1], sample.count("\n") + 2

    def spoilt(at, value):
        fields = last.split(separator)
        fields[at] = value
        return write(f"{sample}\n{separator.join(fields)}\n", "bad.txt")

    paths = [spoilt(SCORES[name], value) for value in ("high", "NaN", "inf") if name in SCORES]
    paths += [spoilt(NAMES[name], "")] if name in NAMES and separator == "\t" else []
    for path in paths:
        assert refused("bad-rows", lambda path=path: read(name, path)).line == line
    for broken in (last + separator + "1", last.rsplit(separator, 1)[0]):
        path = write(f"{sample}{last}\n{broken}\n", "broken.txt")
        assert refused("bad-rows", lambda path=path: read(name, path)).line == line
    refused("other-format", lambda: read(name, write("\n\n", "empty.txt")))


def test_yeastract_is_directed_and_weighted_by_its_evidence(write, genes):
    header = "tf_orf\ttarget_orf\tdna_binding\texpr_activator\texpr_inhibitor\n"
    rows = ["YAL001C\tYAL002W\t1\t0\t1", "YAL002W\tYAL001C\t0\t1\t0", "YAL003W\tYAL003W\t1\t1\t1"]
    text = header + "\n".join([*rows, "YAL003W\tYAL001C\t0\t0\t0"]) + "\n"
    [edges] = read("yeastract", write(text))
    relation, source = edges.on(genes)
    assert (relation.name, relation.directed) == ("regulatory", True)
    assert arrows(relation) == [(0, 1, 2.0), (1, 0, 1.0)]
    assert source.counts.dropped == {"no evidence": 1, "self loop": 1}
    assert list(edges.frame["line"]) == [2, 3, 4]


def test_tflink_gives_an_edge_for_each_of_several_names(write, genes):
    header, row = SAMPLES["tflink"].splitlines()
    pairs = [("TFC3", "VPS8;EFB1"), ("HO", "-"), ("VPS8 ; EFB1", "HO")]
    rows = [row.replace("TFC3\tVPS8", f"{a}\t{b}") for a, b in pairs]
    [edges] = read("tflink", write("\n".join([header, *rows]) + "\n"))
    assert edges.frame.rows() == [
        *(("TFC3", "VPS8", 2), ("TFC3", "EFB1", 2), ("VPS8", "HO", 4), ("EFB1", "HO", 4)),
    ]
    relation, source = edges.on(genes)
    assert (relation.directed, relation.n_edges, source.counts.read) == (True, 4, 5)
    assert source.counts.dropped == {"no gene name": 1}


ITEMS = "4932.YAL001C", "4932.YAL002W", "4932.YAL003W"


def test_string_detailed_has_one_relation_per_channel(write, genes, refused):
    header = SAMPLES["string_detailed"].splitlines()[0]
    a, b, c = ITEMS
    scores = {(a, b): "0 0 0 120 0 900 300 910", (a, c): "57 0 0 0 250 0 1 300"}
    rows = [f"{x} {y} {s}" for p, s in scores.items() for x, y in (p, p[::-1])]
    expected = {
        "string_neighborhood": [(0, 2, 0.057)],
        "string_fusion": [],
        "string_cooccurence": [],
        "string_coexpression": [(0, 1, 0.12)],
        "string_experimental": [(0, 2, 0.25)],
        "string_database": [(0, 1, 0.9)],
    }
    for edges in read("string_detailed", write("\n".join([header, *rows]) + "\n")):
        relation, source = edges.on(genes)
        assert arrows(relation) == expected.pop(relation.name)
        assert source.counts.read == 4
        assert source.counts.dropped["score 0"] == 4 - 2 * relation.n_edges
    assert not expected
    rows[2] = rows[2].replace("250", "2500")
    path = write("\n".join([header, *rows]) + "\n")
    assert refused("bad-rows", lambda: read("string_detailed", path)).line == 4


def test_string_physical_and_combined_are_told_apart_by_name(write, genes):
    text = "protein1 protein2 combined_score\n{0} {1} 292\n{1} {0} 292\n".format(*ITEMS)
    [edges] = read("string_physical", write(text, "4932.protein.physical.links.v12.0.txt.gz"))
    relation, source = edges.on(genes)
    assert (relation.name, relation.directed) == ("physical", False)
    assert arrows(relation) == [(0, 1, 0.292)]
    assert source.counts.dropped == {"other direction of an edge": 1}
    [edges] = read("string_physical", write(text, "4932.protein.links.v12.0.txt"))
    assert edges.name == "string_combined"


def actions(rows, modes="binding"):
    item = dict(zip("abc", ITEMS, strict=True))
    split = (row.split() for row in rows.split(";"))
    written = [
        f"{item[pair[0]]}\t{item[pair[1]]}\t{mode}\t\t{directional}\t{acting}\t900\n"
        for (pair, directional, acting), mode in zip(split, modes.split(",") * 9, strict=False)
    ]
    return SAMPLES["string_actions"].splitlines()[0] + "\n" + "".join(written)


@pytest.mark.parametrize(
    ("rows", "expected", "lines", "mirrored"),
    [
        ("ab f f;ba f f", [(0, 1)], [2, 3], 0),
        ("ab t t;ba t f;ac f f;ca f f", [(0, 1), (0, 2), (2, 0)], [2, 4, 5], 1),
    ],
)
def test_string_actions_point_from_the_acting_item(rows, expected, lines, mirrored, write, genes):
    [edges] = read("string_actions", write(actions(rows)))
    relation, source = edges.on(genes)
    assert relation.directed == ("t" in rows)
    assert [(a, b) for a, b, _ in arrows(relation)] == expected
    assert list(edges.frame["line"]) == lines
    assert source.counts.dropped.get("mirrored half of a directional row", 0) == mirrored


def test_string_actions_have_one_relation_per_mode_and_no_other_flags(write, refused):
    text = actions("ab f f;ab f f;ac f f", "reaction,binding,reaction")
    found = [(e.name, list(e.frame["line"])) for e in read("string_actions", write(text))]
    assert found == [("action_binding", [3]), ("action_reaction", [2, 4])]
    for rows, modes in (("ab f f;ab yes f", "x"), ("ab f f;ab t 1", "x"), ("ab f f;ab t t", "x,")):
        path = write(actions(rows, modes))
        assert refused("bad-rows", lambda path=path: read("string_actions", path)).line == 3


def test_string_adjacency_numbers_are_lines_of_the_gene_list(write):
    listed = write("YAL001C\nYAL002W\nYAL003W\n", "yeast_string_genes.txt")
    text = "1\t2\t0.5\n2\t1\t0.5\n3\t1\t0.25\n"
    [edges] = read("string_adjacency", write(text, "yeast_string_neighborhood_adjacency.txt.gz"))
    assert (edges.name, edges.directed) == ("string_neighborhood", False)
    assert edges.frame.select("source", "target", "weight").rows() == [
        *(("YAL001C", "YAL002W", 0.5), ("YAL002W", "YAL001C", 0.5), ("YAL003W", "YAL001C", 0.25)),
    ]
    sha = hashlib.sha256(listed.read_bytes()).hexdigest()
    assert edges.notes == {"gene list": listed.name, "gene list sha256": sha}
    [edges] = read("string_adjacency", write("1\t2\t0.5\n", "mine.v1.tsv.gz"))
    assert edges.name == "mine.v1"


@pytest.mark.parametrize("lists", [[], ["a.txt", "b.txt.gz"]])
def test_string_adjacency_needs_one_gene_list(lists, write, refused):
    for name in lists:
        write(SAMPLES["string_genes"], name)
    (write("", "x").parent / "broken.gz").write_bytes(b"\x1f\x8b broken")
    path = write("1\t2\t0.5\n", "net.tsv")
    refused("no-gene-list", lambda: read("string_adjacency", path))


@pytest.mark.parametrize("row", ["0\t1\t0.5", "1\t4\t0.5", "-1\t1\t1", "1.5\t2\t1", "i\tj\t1"])
def test_string_adjacency_numbers_that_are_not_lines(row, write, beside, refused, reader_of):
    path = write(f"1\t2\t0.5\n\n{row}\n", "net.tsv")
    assert refused("bad-rows", lambda: read("string_adjacency", path)).line == 3
    header = write("i\tj\tscore\n1\t2\t0.5\n", "yeast_string_fusion_adjacency.txt")
    assert reader_of(header) == "string_adjacency"
    assert refused("bad-rows", lambda: read("string_adjacency", header)).line == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [("{}\n\n{}\n", 43), ("{}\n \n{}\n", 42), ("{}\nyal001c\n{}\n", 42), ("{}\n{}\t1\n", 42)],
)
def test_gene_lists_whose_numbers_would_shift(text, line, write, refused):
    many = "\n".join(f"YA{'LR'[i % 2]}{i:03}C" for i in range(1, 42)).replace("YAR001C", "YAL001C")
    path = write(text.format(many, "YBL001C"))
    assert refused("bad-rows", lambda: read("string_genes", path)).line == line
    assert read("string_genes", write("Q0010\r\nR0010W\r\n\r\n")) == ["Q0010", "R0010W"]
    refused("other-format", read, "string_genes", write("gene\nYAL001C\n"))
