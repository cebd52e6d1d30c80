"""`deltacell start` as it is typed: from two tables to a page, stopped and resumed."""

import json
import os
import shutil

import polars as pl
import pytest

from deltacell.cell import Cell
from deltacell.cli.app import app
from deltacell.profile.record import read_run
from deltacell.screen import Screen
from deltacell.train.loaded_runs import load_run


def start(folder, out, *settings, top=5):
    settings = settings or ("model.rounds=5",)
    words = ("start", str(folder), *settings, "--out", str(out), "--top", str(top))
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
        patched.setattr("deltacell.api.start.evaluate", stop)
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


@pytest.mark.slow
def test_ten_disjoint_pairs_are_enough_for_a_page(tmp_path):
    genes = [f"YAL{i:03}W" for i in range(1, 21)]
    rows = [f"{genes[2 * i]}\t{genes[2 * i + 1]}\t{0.1 * (i - 5)}\n" for i in range(10)]
    folder, out = tmp_path / "tables", tmp_path / "results"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\n" + "".join(rows))
    assert start(folder, out, "model.rounds=5") == 0
    run = read_run(out / "run")
    assert (str(run.status), run.samples.train) == ("finished", 8)
    assert read_run(out / "refitted").samples.train == 10
    ranked = pl.read_parquet(out / "ranking.parquet")
    assert ranked["end"].value_counts(sort=True)["count"].to_list() == [5, 5]
    assert ranked["score"].is_finite().all()
    measured = {frozenset(row.split("\t")[:2]) for row in rows}
    sets = {frozenset(row) for row in ranked["genes"].to_list()}
    assert len(sets) == 10
    assert sets.isdisjoint(measured)
    assert "<table" in (out / "ranking.html").read_text()


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_results_belong_to_their_settings_and_can_be_moved(tables, tmp_path, monkeypatch, refused):
    sources, out = tmp_path / "project" / "tables", tmp_path / "project" / "results"
    shutil.copytree(tables, sources)
    monkeypatch.chdir(sources.parent)
    assert start("tables", "results") == 0
    before = contents(out)
    for settings, keys in (
        (["model.rounds=5", "split.method=gene"], ["split.method"]),
        (["model.rounds=5", "seed=5"], ["seed"]),
        (["model=boosted_trees", "model.rounds=5"], ["model.name", "model.dimensions"]),
    ):
        error = refused("other-settings", start, "tables", "results", *settings)
        assert set(keys) <= {change.key for change in error.fields["changes"]}
        change = error.fields["changes"][0]
        assert change.before != change.now
        assert contents(out) == before
    # Copied without hidden files and with other times, and from another working directory.
    moved = tmp_path / "elsewhere"
    shutil.copytree(sources.parent, moved, copy_function=shutil.copy)
    for hidden in moved.rglob(".*"):
        hidden.unlink()
    for file in (moved / "tables").iterdir():
        os.utime(file, (1, 1))
    shutil.rmtree(sources.parent)
    monkeypatch.chdir(tmp_path)
    assert start(moved / "tables", moved / "results") == 0
    after = contents(moved / "results")
    same = [name for name in before if not name.endswith((".lock", ".html", ".csv"))]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    folder = load_run(moved / "results" / "run").config.data.folder
    assert folder == str(moved / "results" / "data")
    # Replaced where it differs, and only there.
    assert (
        start(moved / "tables", moved / "results", "model.rounds=5", "seed=5", "--overwrite") == 0
    )
    assert read_run(moved / "results" / "run").seed == 5
    replaced = contents(moved / "results")
    assert replaced["ranking.parquet"] != before["ranking.parquet"]
    assert replaced["evaluation.json"] != before["evaluation.json"]
    assert replaced["data/manifest.json"] == before["data/manifest.json"]


def test_other_files_and_foreign_folders_are_refused(tables, tmp_path, refused):
    foreign, copied, out = (tmp_path / name for name in ("mine", "copied", "out"))
    for folder, name in ((foreign, "thesis.txt"), (copied, "screen.tsv")):
        folder.mkdir()
        (folder / name).write_text("gene1\tgene2\tscore\nA\tB\t0.1\n")
    refused("empty-part", start, copied, out)
    (copied / "screen.tsv").write_text("gene1\tgene2\tscore\nA\tB\t0.2\n")
    for folder, to, code in (
        (tmp_path / "gone", out, "no-such-folder"),
        (tables, tables / "results", "out-in-sources"),
        (tables, foreign, "not-empty"),
        (copied, out, "sources-changed"),
    ):
        refused(code, start, folder, to)


NAMES = [
    *("a:b", "back\\slash", "-dash", "with space", "it's", 'dou"ble', "his3Δ", "[a]*?", "end\\"),
    *("a,b", "k=v", "100%", "~", "$HOME", "#x", "s3:x"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_may_have_any_name(tables, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert start(tables, name) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    made = {
        "data",
        "run",
        "refitted",
        "ranking.parquet",
        "ranking.csv",
        "ranking.html",
        "evaluation.md",
    }
    assert made < {entry.name for entry in (tmp_path / name).iterdir()}


@pytest.mark.parametrize("name", ["${oc.env:HOME}", "x${data.folder}", "new\nline", "bell\a"])
def test_a_name_that_cannot_be_kept_is_refused_before_anything_is_written(
    tables,
    tmp_path,
    monkeypatch,
    refused,
    name,
):
    monkeypatch.chdir(tmp_path)
    refused(("interpolation", "path"), start, tables, name)
    refused(("interpolation", "path"), app, ["train", "data.synthetic=demo", f"directory='{name}'"])
    assert not list(tmp_path.iterdir())
