"""The file of a ranking, what a page is given, and its tables."""

import csv
import json
from math import comb
from pathlib import Path
from types import SimpleNamespace

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.api.rank import Ranked
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.cell.annotation import Annotation
from deltacell.ranking import exports
from deltacell.ranking.exports import write_network, write_table
from deltacell.ranking.ranking_file import SCHEMA, Ranking, read_rows, write_ranking
from deltacell.report.predict import print_ranking

ABOUT = {
    "title": "Untested pairs ranked by demo (seed 0)",
    "sentences": ["The 3 lowest and the 2 highest of 10 pairs."],
    "request": {"sets": "pairs", "top": 3},
    "runs": [{"name": "demo", "seed": 0}],
    "counts": {"genes": 5, "sets": 10, "rows": 5, "lowest": 3, "highest": 2, "listed": 0},
    "relations": ["physical"],
}
ROW = {
    **{"end": "lowest", "rank": 1, "genes": ["YA", "YB"], "names": ["A[b]", '=B"2']},
    **{"score": -0.5, "spread": None, "status": "untested", "measured": None, "linked": False},
    **{"low": None, "high": None},
    "relations": ["physical", "regulatory"],
    "links": [{"first": "YA", "second": "YB", "relation": "physical"}],
    **{"pathways": [], "complexes": ["=1+1"]},
}
ROWS = [
    ROW,
    {**ROW, "rank": 2, "score": -0.25, "spread": 0.5, "linked": None},
    {**ROW, "rank": 3, "score": -0.125, "low": -0.25, "high": 0.125},
    {**ROW, "end": "highest", "score": 1.0, "names": ["=HYPERLINK()", "x\ty"]},
    {**ROW, "end": "highest", "rank": 2, "score": 0.5, "measured": 0.75, "status": "measured"},
]


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.fixture
def path(tmp_path):
    write_ranking(tmp_path / "out.parquet", [table(ROWS)], ABOUT)
    return tmp_path / "out.parquet"


def test_rows_come_back_as_they_were(path):
    result = Ranking.read(path).to_json()
    assert result["rows"] == ROWS
    assert (result["rows_not_here"], result["file"]) == (0, "out.parquet")
    assert result.items() >= ABOUT.items()
    json.dumps(result, allow_nan=False)
    few = Ranking.read(path).to_json(most=1)
    assert [(r["end"], r["rank"]) for r in few["rows"]] == [("lowest", 1), ("highest", 1)]
    assert few["rows_not_here"] == 3
    write_ranking(path, [table(ROWS[at : at + 2]) for at in (0, 2, 4)], ABOUT)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert Ranking.read(path).to_json()["rows"] == ROWS


def test_no_rows_are_a_ranking_too_and_another_file_is_none(path, tmp_path, refused):
    counts = {**ABOUT["counts"], "rows": 0, "lowest": 0, "highest": 0}
    write_ranking(tmp_path / "o", [], {**ABOUT, "counts": counts})
    result = Ranking.read(tmp_path / "o").to_json()
    assert result["rows"] == []
    print_ranking(result)
    write_table(tmp_path / "o", tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text().startswith("end,rank,genes,names,score")
    pq.write_table(pa.table({"genes": [1]}), tmp_path / "o")
    refused("not-a-ranking", Ranking.read, tmp_path / "o")
    (tmp_path / "o").write_text("genes")
    refused("damaged-ranking", Ranking.read, tmp_path / "o")
    refused("not-written", write_table, path, tmp_path / "o" / "r.csv")


STRIDE = 29


def test_no_flipped_byte_becomes_another_ranking(path):
    whole = path.read_bytes()
    for at in range(0, len(whole), STRIDE):
        change = (1, 0x20, 0x80)[at % 3]
        path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
        with pytest.raises(InputError):
            Ranking.read(path)


def read_csv(path, delimiter=","):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


@pytest.mark.parametrize(("name", "between"), [("r.csv", ","), ("new/r.TSV", "\t"), ("r", ",")])
def test_all_rows_are_there_and_no_text_is_a_formula(path, tmp_path, name, between):
    write_table(path, tmp_path / name)
    rows = read_csv(tmp_path / name, between)
    single = ["gene1", "gene2", "systematic1", "systematic2"]
    assert list(rows[0]) == ["end", "rank", *single, *SCHEMA.names[2:]]
    expected = {
        **{"gene1": "A[b]", "gene2": "'=B\"2", "systematic2": "YB", "genes": "YA; YB"},
        **{"names": 'A[b]; =B"2', "rank": "1", "score": "-0.5", "spread": "", "pathways": ""},
        **{"relations": "physical; regulatory", "links": "YA YB (physical)"},
        "complexes": "'=1+1",
    }
    assert rows[0].items() >= expected.items()
    assert (rows[3]["end"], rows[3]["names"]) == ("highest", "'=HYPERLINK(); x\ty")


def test_a_workbook_holds_the_same_rows(path, tmp_path, monkeypatch, refused):
    for name in ("r.csv", "r.xlsx"):
        write_table(path, tmp_path / name)
    book = openpyxl.load_workbook(tmp_path / "r.xlsx", read_only=True)
    header, *rows = book["ranking"].iter_rows(values_only=True)
    expected = read_csv(tmp_path / "r.csv")
    assert list(header) == list(expected[0])
    for name in ("end", "gene1", "gene2", "systematic1"):
        assert [row[header.index(name)] for row in rows] == [row[name] for row in expected]
    assert [row[header.index("score")] for row in rows] == [row["score"] for row in ROWS]
    monkeypatch.setattr(exports, "_MOST_ROWS_OF_A_SHEET", 5)
    refused("too-many-rows", write_table, path, tmp_path / "many.xlsx")
    assert not (tmp_path / "many.xlsx").exists()


def test_cytoscape_gets_edges_and_nodes(tmp_path):
    three = {"genes": ["YA", "YB", "YC"], "names": ["A", "B", "C"]}
    triple = {**ROW, **three, "score": -0.25, "rank": 2, "links": []}
    write_ranking(tmp_path / "r.parquet", [table([ROW, triple])], {})
    write_network(tmp_path / "r.parquet", tmp_path / "e.tsv", tmp_path / "n.tsv")
    edges, nodes = (read_csv(tmp_path / name, "\t") for name in ("e.tsv", "n.tsv"))
    assert [" ".join([*list(e.values())[:3], e["rank"]]) for e in edges] == [
        "YA predicted YB 1",
        *("YA predicted YB 2", "YA predicted YC 2", "YB predicted YC 2"),
        "YA physical YB ",
    ]
    assert [" ".join(list(n.values())) for n in nodes] == [
        "YA A[b] 2 -0.5 -0.25",
        "YB '=B\"2 2 -0.5 -0.25",
        "YC C 1 -0.25 -0.25",
    ]


@pytest.mark.parametrize("ranked", [40, 20])
def test_terms_that_the_head_of_a_ranking_has_too_often(tmp_path, ranked):
    terms = Annotation.from_pairs(
        "go",
        [*range(40), 0, 1, 2, 3],
        [0] * 40 + [1] * 4,
        ["all", "rare"],
        n_genes=40,
    )
    cell = Cell([f"Y{i:02d}" for i in range(40)], [], annotations=[terms])
    rows = [{**ROW, "genes": ["Y00", "Y01"]}, {**ROW, "genes": ["Y02", "Y03"], "rank": 2}]
    counts = {"genes": ranked, "sets": 780, "rows": 2, "lowest": 2, "highest": 0, "listed": 0}
    path = tmp_path / "r.parquet"
    write_ranking(path, [table(rows)], {**ABOUT, "counts": counts})
    run = SimpleNamespace(data=SimpleNamespace(cell=cell))
    (one,) = Ranked(path, Ranking.read(path).about, [run], range(ranked)).enrichment()
    assert (one["end"], one["term"], one["genes"], one["drawn"]) == ("lowest", "rare", 4, 4)
    assert one["expected"] == pytest.approx(4 * 4 / ranked)
    # Two terms are tested, and only the sets of these four genes have the rare one four times.
    assert one["q_value"] == pytest.approx(2 / comb(ranked, 4))


@pytest.mark.parametrize("name", ["a:b", "s3:x", "file:x", "~", "[a]*?", "back\\slash", "his3Δ"])
def test_a_folder_may_have_any_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = Path(name) / "ranking.parquet"
    write_ranking(path, [SCHEMA.empty_table()], {"identity": {}, "counts": {}})
    assert Ranking.read(path).about["identity"] == {}
    assert read_rows(path).height == 0
    write_table(path, path.with_suffix(".csv"))
    assert path.with_suffix(".csv").is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
