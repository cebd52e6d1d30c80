"""`deltacell start` as it is typed: from two tables to a page, stopped and resumed."""

import json
import os

import polars as pl
import pytest

from deltacell.cell import Cell
from deltacell.cli.app import app
from deltacell.profile.record import read_run
from deltacell.screen import Screen


def start(folder, out):
    words = ("start", str(folder), "model.rounds=5", "--out", str(out), "--top", "5")
    return app(list(words), standalone_mode=False) or 0


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A screen and a network as people have them."""
    folder = tmp_path_factory.mktemp("tables")
    cell = Cell.synthetic("demo")
    frame = Screen.synthetic(cell, n=250).to_polars().filter(pl.col("genes").list.len() == 2)
    frame.select(
        gene1=pl.col("genes").list.get(0),
        gene2=pl.col("genes").list.get(1),
        score="score",
    ).write_csv(folder / "screen.tsv", separator="\t")
    edges = cell.relation("physical").edges()
    names = cell.genes.systematic
    pl.DataFrame(
        {"a": [names[i] for i in edges.source], "b": [names[i] for i in edges.target]},
    ).write_csv(folder / "physical.csv", include_header=False)
    return folder


@pytest.mark.slow
def test_two_tables_become_a_page_however_often_it_was_stopped(
    tables,
    tmp_path,
    capsys,
    monkeypatch,
):
    out = tmp_path / "results"

    def stop(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("deltacell.verbs.evaluate", stop)
        assert start(tables, out) == 130
    assert str(read_run(out / "run").status) == "finished"
    assert not (out / "ranking.html").exists()
    said = capsys.readouterr()
    assert "By a trial on" in said.err
    assert "pair_trees" in said.err
    made = {path: path.stat().st_mtime_ns for path in (out / "run" / "checkpoints").iterdir()}
    assert start(tables, out) == 0
    rows = pl.read_parquet(out / "ranking.parquet")
    assert set(rows["end"]) == {"lowest", "highest"}
    assert set(rows["status"]) == {"untested"}
    assert "<table" in (out / "ranking.html").read_text()
    assert {"additive", "boosted_trees"} < set(
        json.loads((out / "evaluation.json").read_text())["predictors"],
    )
    assert pl.read_csv(out / "ranking.csv").height == rows.height
    # A second time nothing is done.
    written = (out / "evaluation.json").stat().st_mtime_ns
    assert start(tables, out) == 0
    assert {
        path: path.stat().st_mtime_ns for path in (out / "run" / "checkpoints").iterdir()
    } == made
    assert (out / "evaluation.json").stat().st_mtime_ns == written
    assert "By a trial on" not in capsys.readouterr().err


def test_other_files_and_foreign_folders_are_refused(tables, tmp_path, refused):
    foreign, copied, out = (tmp_path / name for name in ("mine", "copied", "out"))
    for folder, name in ((foreign, "thesis.txt"), (copied, "screen.tsv")):
        folder.mkdir()
        (folder / name).write_text("gene1\tgene2\tscore\nA\tB\t0.1\n")
    refused("empty-part", start, copied, out)
    os.utime(copied / "screen.tsv", (1, 1))
    for folder, to, code in (
        (tmp_path / "gone", out, "no-such-folder"),
        (tables, tables / "results", "out-in-sources"),
        (tables, foreign, "not-empty"),
        (copied, out, "sources-changed"),
    ):
        refused(code, start, folder, to)
