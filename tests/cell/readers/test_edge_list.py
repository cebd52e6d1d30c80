from __future__ import annotations

import pytest

from deltacell.cell.readers import edge_list, recognise, relation_of
from deltacell.errors import InputError
from deltacell.sheet import ColumnNames

HEADERS = [None, ("source", "target"), ("Gene_A", "Gene_B"), ("#node1", "node2"), ("from", "to")]


@pytest.mark.parametrize("separator", ["\t", ",", " ", "   ", ", "])
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_all_the_ways_to_write_one(separator, header, weighted, write):
    rows = [["YAL001C", "VPS8", "0.5"], ["VPS8", "HO", "1e-3"], ["MATa1", "YBR001C-A", "2"]]
    if header:
        rows.insert(0, [*header, "weight"])
    text = "".join(separator.join(row[: 2 + weighted]) + "\n" for row in rows)
    path = write(text, "my.net.txt.gz")
    assert recognise(path) == "edge_list"
    [edges] = edge_list.read(path)
    assert edges.name == "my.net"
    assert list(edges.source) == ["YAL001C", "VPS8", "MATa1"]
    assert list(edges.target) == ["VPS8", "HO", "YBR001C-A"]
    assert list(edges.lines) == ([2, 3, 4] if header else [1, 2, 3])
    assert not edges.directed
    if weighted:
        assert list(edges.weight) == [0.5, 0.001, 2]
    else:
        assert edges.weight is None


def test_name_and_direction_are_the_callers(write):
    [edges] = edge_list.read(write("A1\tB1\n"), name="mine", directed=True)
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
        (
            "kinase\tsubstrate\tstrength\nA1\tB1\t-0.5\n",
            "gene1=kinase,gene2=substrate,weight=strength",
        ),
        ("A1\tB1\t-0.5\nA1\tB2\t0.25\n", "gene1=1,gene2=2,weight=3"),
    ],
)
def test_the_columns_that_are_given_are_read(text, names, write):
    columns = [ColumnNames.parse(names)]
    path = write(text)
    assert recognise(path, columns) == "edge_list"
    [edges] = edge_list.read(path, columns=columns)
    assert (edges.source[0], edges.target[0], edges.weight[0]) == ("A1", "B1", -0.5)


@pytest.mark.parametrize("text", ["YAL001C\n", "A1\tB1\t1\t2\n"])
def test_what_is_no_edge_list(text, write):
    with pytest.raises(InputError, match="two columns of genes"):
        edge_list.read(write("\n" + text))


def test_nothing_below_the_header(write):
    with pytest.raises(InputError, match="nothing below the header"):
        edge_list.read(write("source\ttarget\n"))


@pytest.mark.parametrize(
    ("bad", "what"),
    [("YAL009W", "other than 3 columns"), ("YAL009W\tYAL010C\tstrong", "line 3: 'strong'")],
)
def test_a_bad_line_near_the_beginning_is_named(bad, what, write):
    rows = [f"YAL00{i}C\tYAL00{i + 1}W\t0.{i}" for i in range(1, 7)]
    rows[2] = bad
    path = write("\n".join(rows) + "\n")
    assert recognise(path) == "edge_list"
    with pytest.raises(InputError, match=what) as caught:
        edge_list.read(path)
    assert caught.value.line == 3


def test_lines_of_which_few_are_edges_are_none(write):
    assert recognise(write("YAL001C\tYAL002W\nsee\tthe\tfile\nof\t1998\n")) is None


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
    kept = [i for i, line in enumerate(lines, 1) if line.endswith("5")]
    assert edges.lines.tolist() == kept
    assert sorted(edges.weight) == [0.25, 0.5]
    relation, source = relation_of(edges, genes)
    assert relation.n_edges == 2
    assert source.counts.dropped == {"no weight": len(rows) - 2}


def test_a_column_of_weights_without_any_is_named(write):
    path = write("gene1,gene2,weight\nTFC3,VPS8,\nTFC3,EFB1,NA\n")
    assert recognise(path) is None
