"""The file of a ranking, what a page is given, and its tables."""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from math import comb
from types import SimpleNamespace

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.cell import Cell
from deltacell.cell.annotation import Annotation
from deltacell.errors import InputError
from deltacell.predict import ranking_file
from deltacell.predict.ranking_file import (
    SCHEMA,
    Ranking,
    differences,
    read_about,
    write_network,
    write_ranking,
    write_table,
)
from deltacell.predict.request import _rows
from deltacell.predict.verbs import Ranked
from deltacell.report.predict import print_ranking

ABOUT = {
    "title": "Untested pairs ranked by demo (seed 0)",
    "sentences": ["The 3 lowest and the 2 highest of 10 pairs."],
    "request": {"sets": "pairs", "top": 3},
    "identity": {"sets": "pairs"},
    "runs": [{"name": "demo", "seed": 0}],
    "counts": {"genes": 5, "sets": 10, "rows": 5, "lowest": 3, "highest": 2, "listed": 0},
    "relations": ["physical"],
}
ROW = {
    **{"end": "lowest", "rank": 1, "genes": ["YA", "YB"], "names": ["A[b]", '=B"2']},
    **{"score": -0.5, "spread": None, "status": "untested", "measured": None, "linked": False},
    "relations": ["physical", "regulatory"],
    "links": [{"first": "YA", "second": "YB", "relation": "physical"}],
    **{"pathways": [], "complexes": ["=1+1"]},
}
ROWS = [
    ROW,
    {**ROW, "rank": 2, "score": -0.25, "spread": 0.5, "linked": None},
    {**ROW, "rank": 3, "score": -0.125},
    {**ROW, "end": "highest", "score": 1.0, "names": ["=HYPERLINK()", "x\ty"]},
    {**ROW, "end": "highest", "rank": 2, "score": 0.5, "measured": 0.75, "status": "measured"},
]


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.fixture
def path(tmp_path):
    write_ranking(tmp_path / "out.parquet", [table(ROWS)], lambda: ABOUT)
    return tmp_path / "out.parquet"


def test_rows_come_back_as_they_were(path):
    result = Ranking.read(path).to_json()
    assert result["rows"] == ROWS
    assert (result["rows_not_here"], result["file"]) == (0, "out.parquet")
    said = {name: value for name, value in ABOUT.items() if name != "identity"}
    assert {name: result[name] for name in said} == said
    json.dumps(result, allow_nan=False)
    few = Ranking.read(path).to_json(most=1)
    assert [(r["end"], r["rank"]) for r in few["rows"]] == [("lowest", 1), ("highest", 1)]
    assert few["rows_not_here"] == 3


def test_how_rows_are_cut_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking_file, "ROWS_PER_GROUP", 2)
    path, files = tmp_path / "cut.parquet", set()
    for cuts in ([5], [1, 4], [0, 3, 0, 2], [1, 1, 1, 1, 1]):
        ends = [sum(cuts[: i + 1]) for i in range(len(cuts))]
        pieces = [table(ROWS[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
        write_ranking(path, pieces, lambda: ABOUT)
        files.add(path.read_bytes())
    assert len(files) == 1
    assert pq.ParquetFile(path).num_row_groups == 3
    assert Ranking.read(path).to_json()["rows"] == ROWS


def test_no_rows_are_a_ranking_too(tmp_path, capsys):
    counts = {**ABOUT["counts"], "rows": 0, "lowest": 0, "highest": 0}
    write_ranking(tmp_path / "o", [], lambda: {**ABOUT, "counts": counts})
    result = Ranking.read(tmp_path / "o").to_json()
    assert result["rows"] == []
    print_ranking(result)
    write_table(tmp_path / "o", tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text().startswith("end,rank,genes,names,score")


def test_another_file_is_not_taken_for_one(tmp_path):
    path = tmp_path / "o.parquet"
    pq.write_table(pa.table({"genes": [1]}), path)
    for code in ("not-a-ranking", "unreadable-ranking"):
        with pytest.raises(InputError) as caught:
            read_about(path)
        assert caught.value.code == code
        path.write_text("genes")


def test_a_row_that_fails_leaves_what_was_there(path, tmp_path):
    before = path.read_bytes()

    def broken():
        yield table(ROWS)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_ranking(path, broken(), lambda: ABOUT)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]


def test_on_the_terminal(path, capsys):
    result = Ranking.read(path).to_json()
    result["agreement"] = [
        {"part": "test", "sets": 12, "pearson": 0.5},
        {"part": "training", "sets": 2, "pearson": None},
    ]
    print_ranking(result, most=2)
    said = capsys.readouterr().out
    for text in ("(2 of 3)", "A[b] ", "-0.5000", "0.7500", *ABOUT["sentences"], "0.500 over 12"):
        assert text in said
    assert "-0.1250" not in said
    assert "training" not in said


@pytest.mark.parametrize("change", [1, 0x20, 0x80])
def test_no_flipped_byte_becomes_another_ranking(path, change):
    whole, right = path.read_bytes(), Ranking.read(path).to_json()
    sets = list(_rows(path))
    assert [genes for _, genes in sets] == [row["genes"] for row in ROWS]
    undetected = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
        try:
            assert Ranking.read(path).to_json() == right
            undetected += 1
        except InputError:
            pass
        with suppress(InputError):
            assert list(_rows(path)) == sets or at < 4
    # What is not looked at, such as the name of the program that wrote it, may change.
    assert undetected < len(whole) / 7 / 2


def read_csv(path, delimiter=","):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


@pytest.mark.parametrize(("name", "between"), [("r.csv", ","), ("new/r.TSV", "\t"), ("r", ",")])
def test_all_rows_are_there_and_no_text_is_a_formula(path, tmp_path, name, between):
    write_table(path, tmp_path / name)
    rows = read_csv(tmp_path / name, between)
    assert list(rows[0]) == [
        *("end", "rank", "gene1", "gene2", "systematic1", "systematic2"),
        *(column for column in SCHEMA.names if column not in ("end", "rank")),
    ]
    first, later = rows[0], rows[3]
    assert (first["gene1"], first["gene2"], first["systematic2"]) == ("A[b]", "'=B\"2", "YB")
    assert first["links"] == "YA YB (physical)"
    assert (first["genes"], first["names"]) == ("YA; YB", 'A[b]; =B"2')
    assert (first["rank"], float(first["score"]), first["spread"]) == ("1", -0.5, "")
    assert (first["relations"], first["pathways"]) == ("physical; regulatory", "")
    assert first["complexes"] == "'=1+1"
    assert (later["end"], later["names"]) == ("highest", "'=HYPERLINK(); x\ty")


def test_a_workbook_holds_the_same_rows(path, tmp_path, monkeypatch):
    write_table(path, tmp_path / "r.csv")
    write_table(path, tmp_path / "r.xlsx")
    book = openpyxl.load_workbook(tmp_path / "r.xlsx", read_only=True)
    header, *rows = book["ranking"].iter_rows(values_only=True)
    expected = read_csv(tmp_path / "r.csv")
    assert list(header) == list(expected[0])
    for name in ("end", "gene1", "gene2", "systematic1"):
        assert [row[header.index(name)] for row in rows] == [row[name] for row in expected]
    assert [row[header.index("score")] for row in rows] == [row["score"] for row in ROWS]
    monkeypatch.setattr(ranking_file, "_MOST_ROWS_OF_A_SHEET", 5)
    with pytest.raises(InputError) as caught:
        write_table(path, tmp_path / "many.xlsx")
    assert caught.value.code == "too-many-rows"
    assert not (tmp_path / "many.xlsx").exists()


def test_cytoscape_gets_edges_and_nodes(tmp_path):
    three = {"genes": ["YA", "YB", "YC"], "names": ["A", "B", "C"]}
    triple = {**ROW, **three, "score": -0.25, "rank": 2, "links": []}
    write_ranking(tmp_path / "r.parquet", [table([ROW, triple])], dict)
    write_network(tmp_path / "r.parquet", tmp_path / "e.tsv", tmp_path / "n.tsv")
    edges, nodes = (read_csv(tmp_path / name, "\t") for name in ("e.tsv", "n.tsv"))
    assert [(e["source"], e["interaction"], e["target"], e["rank"]) for e in edges] == [
        ("YA", "predicted", "YB", "1"),
        ("YA", "predicted", "YB", "2"),
        ("YA", "predicted", "YC", "2"),
        ("YB", "predicted", "YC", "2"),
        ("YA", "physical", "YB", ""),
    ]
    assert [(n["id"], n["sets"], n["lowest_score"], n["highest_score"]) for n in nodes] == [
        ("YA", "2", "-0.5", "-0.25"),
        ("YB", "2", "-0.5", "-0.25"),
        ("YC", "1", "-0.25", "-0.25"),
    ]


def test_a_place_that_cannot_be_written_is_an_error(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        write_table(path, tmp_path / "file" / "r.csv")
    assert caught.value.code == "cannot-write"


def test_differences_by_name():
    was = {"top": 30, "status": ["untested"], "cell": "a" * 64, "same": 1}
    now = {"top": 7, "status": ["untested", "tested"], "cell": "b" * 64, "same": 1}
    assert differences(was, now) == [
        "top was 30 and is 7",
        "status was untested and is untested, tested",
        f"cell was {'a' * 12} and is {'b' * 12}",
    ]
    assert differences(was, was) == []


@pytest.mark.parametrize("ranked", [40, 20])
def test_terms_that_the_head_of_a_ranking_has_too_often(tmp_path, ranked):
    names = [f"Y{i:02d}" for i in range(40)]
    terms = Annotation.from_pairs(
        "go", [*range(40), 0, 1, 2, 3], [0] * 40 + [1] * 4, ["all", "rare"], n_genes=40
    )
    cell = Cell(names, [], annotations=[terms])
    rows = [{**ROW, "genes": ["Y00", "Y01"]}, {**ROW, "genes": ["Y02", "Y03"], "rank": 2}]
    counts = {"genes": ranked, "sets": 780, "rows": 2, "lowest": 2, "highest": 0, "listed": 0}
    about = {**ABOUT, "counts": counts, "request": {"genes": "mine.txt"}}
    write_ranking(tmp_path / "r.parquet", [table(rows)], lambda: about)
    run = SimpleNamespace(data=SimpleNamespace(cell=cell))
    about = read_about(tmp_path / "r.parquet")
    found = Ranked(tmp_path / "r.parquet", about, [run], range(ranked))
    (one,) = found.enrichment()
    assert (one["end"], one["term"], one["genes"], one["drawn"]) == ("lowest", "rare", 4, 4)
    assert one["expected"] == pytest.approx(4 * 4 / ranked)
    # Two terms are tested, and only the sets of these four genes have the rare one four times.
    assert one["q_value"] == pytest.approx(2 / comb(ranked, 4))
