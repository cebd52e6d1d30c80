"""A ranking as a table."""

from __future__ import annotations

import csv

import pyarrow as pa
import pytest

from deltacell.errors import InputError
from deltacell.predict.ranking import SCHEMA, write_ranking, write_table

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
    assert list(rows[0]) == [column for column in SCHEMA.names if column != "links"]
    first, second = rows
    assert (first["genes"], first["names"]) == ("YA; YB", 'A,1; =B"2')
    assert (first["rank"], float(first["score"]), first["spread"]) == ("1", -0.5, "")
    assert (first["relations"], first["pathways"]) == ("physical; regulatory", "")
    assert first["complexes"] == "'=1+1"
    assert (second["end"], second["names"]) == ("highest", "'=HYPERLINK(); x\ty")


def test_where_it_cannot_be_written_nothing_is(ranking, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the table could not be written"):
        write_table(ranking, tmp_path / "file" / "r.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "r.parquet"]
