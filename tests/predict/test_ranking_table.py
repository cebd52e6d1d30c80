"""A ranking as a table."""

from __future__ import annotations

import csv

import openpyxl
import pyarrow as pa
import pytest

from deltacell.errors import InputError
from deltacell.predict.ranking import SCHEMA, write_network, write_ranking, write_table

ROW = {
    "end": "lowest",
    "rank": 1,
    "genes": ["YA", "YB"],
    "names": ["A,1", '=B"2'],
    "score": -0.5,
    "spread": None,
    "status": "untested",
    "measured": None,
    "linked": False,
    "relations": ["physical", "regulatory"],
    "links": [{"first": "YA", "second": "YB", "relation": "physical"}],
    "pathways": [],
    "complexes": ["=1+1"],
}
ROWS = [ROW, {**ROW, "end": "highest", "names": ["=HYPERLINK()", "x\ty"], "score": 0.25, "rank": 2}]


@pytest.fixture
def ranking(tmp_path):
    write_ranking(tmp_path / "r.parquet", [pa.Table.from_pylist(ROWS, SCHEMA)], dict)
    return tmp_path / "r.parquet"


@pytest.mark.parametrize(("name", "between"), [("r.csv", ","), ("new/r.TSV", "\t"), ("r", ",")])
def test_all_rows_are_there_and_no_text_is_a_formula(ranking, tmp_path, name, between):
    write_table(ranking, tmp_path / name)
    with (tmp_path / name).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=between))
    assert list(rows[0]) == [
        *("end", "rank", "gene1", "gene2", "systematic1", "systematic2"),
        *(column for column in SCHEMA.names if column not in ("end", "rank")),
    ]
    first, second = rows
    assert (first["gene1"], first["gene2"], first["systematic2"]) == ("A,1", "'=B\"2", "YB")
    assert first["links"] == "YA YB (physical)"
    assert (first["genes"], first["names"]) == ("YA; YB", 'A,1; =B"2')
    assert (first["rank"], float(first["score"]), first["spread"]) == ("1", -0.5, "")
    assert (first["relations"], first["pathways"]) == ("physical; regulatory", "")
    assert first["complexes"] == "'=1+1"
    assert (second["end"], second["names"]) == ("highest", "'=HYPERLINK(); x\ty")


def test_a_workbook_holds_the_same_rows(ranking, tmp_path):
    write_table(ranking, tmp_path / "r.csv")
    write_table(ranking, tmp_path / "r.xlsx")
    book = openpyxl.load_workbook(tmp_path / "r.xlsx", read_only=True)
    header, *rows = book["ranking"].iter_rows(values_only=True)
    with (tmp_path / "r.csv").open(newline="") as file:
        expected = list(csv.reader(file))
    assert list(header) == expected[0]
    assert [row[:6] for row in rows] == [
        ("lowest", 1, "A,1", "'=B\"2", "YA", "YB"),
        ("highest", 2, "'=HYPERLINK()", "x\ty", "YA", "YB"),
    ]
    assert [row[header.index("score")] for row in rows] == [-0.5, 0.25]


def test_cytoscape_gets_edges_and_nodes(tmp_path):
    triple = {
        **ROW,
        "genes": ["YA", "YB", "YC"],
        "names": ["A", "B", "C"],
        "score": -0.25,
        "rank": 2,
        "links": [],
    }
    path = tmp_path / "r.parquet"
    write_ranking(path, [pa.Table.from_pylist([ROW, triple], SCHEMA)], dict)
    write_network(path, tmp_path / "e.tsv", tmp_path / "n.tsv")
    with (tmp_path / "e.tsv").open(newline="") as file:
        edges = list(csv.DictReader(file, delimiter="\t"))
    assert [(e["source"], e["interaction"], e["target"], e["rank"]) for e in edges] == [
        ("YA", "predicted", "YB", "1"),
        ("YA", "predicted", "YB", "2"),
        ("YA", "predicted", "YC", "2"),
        ("YB", "predicted", "YC", "2"),
        ("YA", "physical", "YB", ""),
    ]
    with (tmp_path / "n.tsv").open(newline="") as file:
        nodes = list(csv.DictReader(file, delimiter="\t"))
    assert [(n["id"], n["sets"], float(n["lowest_score"])) for n in nodes] == [
        ("YA", "2", -0.5),
        ("YB", "2", -0.5),
        ("YC", "1", -0.25),
    ]


def test_a_ranking_without_rows_has_its_header(tmp_path):
    write_ranking(tmp_path / "r.parquet", [SCHEMA.empty_table()], dict)
    write_table(tmp_path / "r.parquet", tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text().strip() == ",".join(SCHEMA.names)
    write_network(tmp_path / "r.parquet", tmp_path / "e.tsv", tmp_path / "n.tsv")
    assert len((tmp_path / "e.tsv").read_text().splitlines()) == 1


def test_where_it_cannot_be_written_nothing_is(ranking, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the table could not be written"):
        write_table(ranking, tmp_path / "file" / "r.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "r.parquet"]
