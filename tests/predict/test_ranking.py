"""The file of a ranking, and what a page is given."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.errors import InputError
from deltacell.predict.rank import duration
from deltacell.predict.ranking import SCHEMA, Ranking, read_about, write_ranking
from deltacell.predict.request import _rows
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


def row(end, rank, score, **more):
    return {
        "end": end,
        "rank": rank,
        "genes": ["YA", "YB"],
        "names": ["A[b]", "YB"],
        "score": score,
        "spread": None,
        "status": "untested",
        "measured": None,
        "linked": False,
        "relations": ["physical"],
        "links": [{"first": "YA", "second": "YB", "relation": "physical"}],
        "pathways": [],
        "complexes": [],
        **more,
    }


ROWS = [
    row("lowest", 1, -0.5),
    row("lowest", 2, -0.25, spread=0.5, linked=None),
    row("lowest", 3, -0.125),
    row("highest", 1, 1.0),
    row("highest", 2, 0.5, measured=0.75, status="measured"),
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
    assert result["rows_not_here"] == 0
    assert result["file"] == "out.parquet"
    assert {name: result[name] for name in ABOUT if name != "identity"} == {
        name: value for name, value in ABOUT.items() if name != "identity"
    }
    json.dumps(result, allow_nan=False)


def test_the_first_rows_of_each_end(path):
    result = Ranking.read(path).to_json(most=1)
    assert [(r["end"], r["rank"]) for r in result["rows"]] == [("lowest", 1), ("highest", 1)]
    assert result["rows_not_here"] == 3


def test_how_rows_are_cut_leaves_no_trace(path, tmp_path, monkeypatch):
    monkeypatch.setattr("deltacell.predict.ranking.ROWS_A_GROUP", 2)
    files = []
    for cuts in ([5], [1, 4], [0, 3, 0, 2], [1, 1, 1, 1, 1]):
        rest, pieces = list(ROWS), []
        for n in cuts:
            pieces.append(table(rest[:n]))
            rest = rest[n:]
        write_ranking(tmp_path / "cut.parquet", pieces, lambda: ABOUT)
        files.append((tmp_path / "cut.parquet").read_bytes())
    assert len(set(files)) == 1
    assert pq.ParquetFile(tmp_path / "cut.parquet").num_row_groups == 3
    assert Ranking.read(tmp_path / "cut.parquet").to_json()["rows"] == ROWS


def test_no_rows_are_a_ranking_too(tmp_path, capsys):
    counts = {"genes": 5, "sets": 10, "rows": 0, "lowest": 0, "highest": 0, "listed": 0}
    write_ranking(tmp_path / "o", [], lambda: {**ABOUT, "counts": counts})
    result = Ranking.read(tmp_path / "o").to_json()
    assert result["rows"] == []
    print_ranking(result)
    assert "No set is left" in capsys.readouterr().out


def test_another_file_is_not_taken_for_one(tmp_path):
    pq.write_table(pa.table({"genes": [1]}), tmp_path / "o.parquet")
    with pytest.raises(InputError, match="no ranking of `deltacell predict`"):
        read_about(tmp_path / "o.parquet")
    (tmp_path / "o.parquet").write_text("genes")
    with pytest.raises(InputError, match="no ranking that can be read"):
        read_about(tmp_path / "o.parquet")


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
    assert "lowest scores: the sickest (2 of 3)" in said
    assert "A[b] YB" in said
    assert "-0.5000" in said
    assert "0.7500" in said
    assert "-0.1250" not in said
    assert "The 3 lowest and the 2 highest of 10 pairs." in said
    assert "Pearson 0.500 over 12 sets" in said
    assert "training" not in said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "2 seconds"),
        (40, "40 seconds"),
        (119, "119 seconds"),
        (180, "3 minutes"),
        (18_000, "5 hours"),
        (200_000, "2 days"),
    ],
)
def test_times_as_people_say_them(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize("change", [1, 0x20, 0x80])
def test_no_flipped_byte_becomes_another_ranking(tmp_path, change):
    path = tmp_path / "o.parquet"
    write_ranking(path, [table(ROWS)], lambda: ABOUT)
    whole, right = path.read_bytes(), Ranking.read(path).to_json()
    undetected = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
        try:
            assert Ranking.read(path).to_json() == right
            undetected += 1
        except InputError:
            pass
    # What is not looked at, such as the name of the program that wrote it, may change.
    assert undetected < len(whole) / 7 / 2


def test_a_damaged_ranking_is_not_a_file_of_sets(tmp_path):
    path = tmp_path / "o.parquet"
    write_ranking(path, [table(ROWS)], lambda: ABOUT)
    assert [genes for _, genes in _rows(path)] == [row["genes"] for row in ROWS]
    whole = path.read_bytes()
    at = whole.index(ROWS[0]["genes"][0].encode())
    path.write_bytes(whole[:at] + b"Z" + whole[at + 1 :])
    with pytest.raises(InputError, match=r"damaged|cannot be read"):
        list(_rows(path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"damaged|cannot be read"):
        list(_rows(path))
