"""`deltacell predict`, `why` and `evaluate` as they are typed."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from deltacell.cli.app import app
from deltacell.data.import_folder import Imported
from deltacell.evaluation.other_screen import NO_INTERACTION
from deltacell.models import Dango
from deltacell.screen import Genotypes, Screen
from deltacell.train.loaded_runs import load_run


@pytest.fixture(scope="module", autouse=True)
def loaded_once(runs):
    """Load each of the small runs once."""
    loaded = {}

    def load(path, which="best", data=None, device="cpu"):
        if Path(path).parent != runs.folder:
            return load_run(path, which, data, device)
        if (path, which) not in loaded:
            loaded[path, which] = load_run(path, which, data, device)
        return loaded[path, which]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltacell.train.loaded_runs.load_run", load)
        yield


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pairs_of_the_screen_with_a_page_and_json(runs, here, deltacell, mistake):
    words = ("predict", runs["seed0"], "--sets", "pairs", "--top", "20")
    said = deltacell(*words, "--html", "new/p.html", "--json", "p.json", "--csv", "p.csv")
    assert "pairs of" in said.stderr
    assert "All 40 rows: predicted-pairs.parquet" in said.stdout
    rows = pl.read_parquet("predicted-pairs.parquet")
    assert rows["end"].to_list() == ["lowest"] * 20 + ["highest"] * 20
    assert rows["rank"].to_list() == [*range(1, 21)] * 2
    assert rows["score"][:20].is_sorted()
    assert rows["score"][20:].is_sorted(descending=True)
    assert set(rows["status"]) == {"untested"}
    assert not rows["linked"].any()
    assert rows["spread"].is_null().all()
    table = pl.read_csv("p.csv")
    assert table["genes"].str.split("; ").to_list() == rows["genes"].to_list()
    result = json.loads(Path("p.json").read_text())
    assert (len(result["rows"]), result["runs"][0]["model"]) == (40, "dango")
    assert result["measured"]
    assert isinstance(result["enrichment"], list)
    assert {one["part"] for one in result["agreement"]} == {"test", "validation", "training"}
    assert rows["genes"][0][0] in Path("new/p.html").read_text()
    # Another request does not replace it unasked.
    mistake("other-request", *words[:-1], "7")
    deltacell(*words[:-1], "7", "--overwrite")
    assert pl.read_parquet("predicted-pairs.parquet").height == 14


def test_several_runs_have_a_mean_and_a_spread(runs, here, deltacell):
    both = [runs["seed0"], runs["seed1"]]
    Path("mine.txt").write_text("# mine\nYAL0009C YAL0008C\nYAL0007W,YAL0009C\tYBL0001W\n")
    deltacell("predict", *both, "--sets", "mine.txt")
    rows = pl.read_parquet("predicted-mine.parquet")
    assert rows["end"].is_null().all()
    assert rows["score"].is_sorted()
    assert (rows["spread"] > 0).all()
    assert rows["linked"].to_list() == [True, True]


def test_sets_with_given_genes_hold_them_and_no_set_twice(runs, here, deltacell):
    run = runs["seed0"]
    words = ("--genes", "all", "--status", "any", "--linked", "--top", "400")
    deltacell("predict", run, "--sets", "with", "YAL0009C", "yal0007w", *words)
    genes = pl.read_parquet("predicted-with-YAL0009C-yal0007w.parquet")["genes"]
    assert genes.n_unique() == len(genes) == 298
    assert all({"YAL0009C", "YAL0007W"} < set(one) for one in genes.to_list())
    Path("few.txt").write_text("YAL0009C\nYAL0008C\nYAL0007W\nYBL0001W\n")
    words = ("--genes", "few.txt", "--size", "3", "--status", "any", "--linked", "--above", "-99")
    deltacell("predict", run, "--sets", "with YBL0001W", *words, "--out", "w.parquet")
    assert pl.read_parquet("w.parquet")["end"].to_list() == ["highest"] * 3


RUN = "RUN"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["predict", RUN, "--sets", "paris"], "unknown-sets"),
        (["predict", RUN, "--sets", "with", "YAL0009"], "unknown-gene"),
        (["predict", "--sets", "with", "YAL0009C"], "no-run"),
        (["predict", RUN, "runs/gone", "--sets", "with", "YAL0009C"], "not-a-run"),
        (["predict", "none", "--sets", "pairs"], "not-a-run"),
        (["predict", RUN, "--sets", "pairs", "--genes", "none"], "no-such-file"),
        (["predict", RUN, "--sets", "triples", "--genes", "two.txt"], "too-few-genes"),
        (["predict", RUN, "--sets", "pairs", "--weights", "first"], "no-checkpoint"),
        (["predict", RUN, "--sets", "pairs", "--out", "empty.txt"], "damaged-ranking"),
        (["predict", RUN, "--sets", "pairs", "--out", "p.TSV"], "wrong-suffix"),
        (["predict", RUN, "--sets", "pairs", "--html", "."], "is-a-directory"),
        (["why", RUN, ","], "no-gene"),
        (["why", RUN, "YAL0009C YAL0009"], "unknown-gene"),
        (["why", "YAL0009C", "YBL0001W"], "no-run"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(runs, here, words, code, refused):
    Path("empty.txt").write_text("")
    Path("two.txt").write_text("YAL0009C YAL0008C\n")
    given = [str(runs["seed0"]) if word == RUN else word for word in words]
    refused(code, app, given, standalone_mode=False)
    assert {p.name for p in here.iterdir()} == {"empty.txt", "two.txt"}


def test_runs_of_other_genes_do_not_rank_together(runs, here, deltacell, refused):
    fewer = ("data.screen_genes_only=true", "data.synthetic_genotypes=150", "directory=other")
    deltacell("train", *runs.fitted, "model=global_mean", *fewer)
    absent = set(load_run(runs["seed0"]).data.cell.genes)
    absent -= set(load_run("other").data.cell.genes)
    for words, code in (
        ([str(runs["seed0"]), "other", "--sets", "pairs"], "different-genes"),
        (["other", str(runs["seed0"]), "--sets", "pairs"], "different-genes"),
        (["other", "--sets", "with", min(absent)], "unknown-gene"),
    ):
        refused(code, app, ["predict", *words], standalone_mode=False)


def test_two_processes_write_the_same_file(runs, here, deltacell, monkeypatch):
    """As torchrun starts them; they meet in files alone, so one may come after the other."""
    monkeypatch.setattr(Dango, "sets_per_block", 8**3)
    Path("few.txt").write_text("\n".join(list(load_run(runs["seed0"]).data.cell.genes)[::12]))
    words = ("predict", runs["seed0"], "--sets", "triples", "--top", "50", "--genes", "few.txt")
    deltacell(*words, "--out", "one.parquet")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        said.append(deltacell(*words, "--out", "two.parquet"))
    assert "this is part 1 of 2" in said[1].stderr
    assert ["lowest scores" in one.stdout for one in said] == [False, True]
    assert Path("one.parquet").read_bytes() == Path("two.parquet").read_bytes()
    assert not Path("two.parquet.partial").exists()


@pytest.mark.parametrize("names", [["trees"], ["mean"], ["seed0", "trees"]])
def test_any_run_and_any_mixture_ranks_and_explains(runs, here, deltacell, names):
    paths = [runs[name] for name in names]
    asked = ["--top", 7, "--out", "o.parquet", "--overwrite"]
    deltacell("predict", *paths, "--sets", "pairs", *asked, "--json", "pairs.json")
    rows, loaded = pl.read_parquet("o.parquet"), [load_run(path) for path in paths]
    # All sets of a predictor that knows nothing are level, and its ends hold the same ones.
    assert rows.height == (7 if names == ["mean"] else 14)
    if names == ["mean"]:
        return
    if len(names) == 1:
        genes = loaded[0].data.cell.genes
        sets = [[genes.index(name) for name in pair] for pair in rows["genes"].to_list()]
        expected = loaded[0].predictor(Genotypes.of(sets)).tolist()
        assert rows["score"].to_list() == pytest.approx(expected, abs=1e-6)
    first = rows["genes"][0].to_list()
    deltacell("predict", *paths, "--sets", "with", first[0], *asked)
    assert all(first[0] in genes for genes in pl.read_parquet("o.parquet")["genes"].to_list())
    files = ("--json", "why.json", "--html", "why.html")
    said = deltacell("why", *paths, ", ".join(first), *files).stdout
    explained = json.loads(Path("why.json").read_text())
    told = " ".join(json.loads(Path("pairs.json").read_text())["sentences"])
    assert ("different predictors" in told) == (len(names) > 1)
    assert [one["name"] for one in explained["runs"]] == [run.record.name for run in loaded]
    assert explained["genes"] == first
    assert explained["nearest"]
    assert bool(explained["relations"]) == ("seed0" in names)
    for shown in (said, Path("why.html").read_text()):
        assert f"Why {' '.join(explained['names'])} scores" in shown


def test_an_evaluation_has_tables_files_and_a_verdict(runs, here, deltacell):
    files = ("--json", "e.json", "--markdown", "e.md", "--figures", "new/figures")
    done = deltacell("evaluate", runs["seed0"], "--baselines", "additive", *files)
    assert "has the highest Pearson correlation on test" in done.stdout
    result = json.loads(Path("e.json").read_text())
    assert set(result["predictors"]) == {"demo", "additive"}
    assert "| additive |" in Path("e.md").read_text()
    drawn = {path.name for path in Path("new/figures").iterdir()}
    assert {"demo-predicted.png", "demo-relations.png", "additive-calibration.png"} <= drawn


def test_another_screen_as_the_test(runs, here, deltacell, mistake):
    data = load_run(runs["seed0"]).data
    fresh = Screen.synthetic(data.cell, n=400, seed=3)
    trained = data.screen.take(np.concatenate([data.split.train, data.split.validation]))
    Imported(data.cell, {"other": Screen.concat([fresh, trained])}).save(here / "import")
    words = ("evaluate", runs["seed0"], "--baselines", "additive", "--on")
    done = deltacell(*words, "import", "--beyond", "0.1", "--json", "on.json")
    assert "Tested on another screen" in done.stdout
    result = json.loads(Path("on.json").read_text())
    told, far = result["on"], result["groups"][-1]
    assert told["dropped"]["in training or validation"] >= len(trained)
    assert told["kept"] == told["read"] - sum(told["dropped"].values())
    assert (told["read"], told["kept"]) == (400 + len(trained), result["groups"][0]["rows"])
    assert f"{told['kept']:,} of its {told['read']:,} rows" in result["leakage"]
    beyond = (np.abs(fresh.column("score")) >= np.float32(0.1)).sum()
    assert (far["by"], set(far["scores"])) == ("beyond", {"demo", "additive"})
    assert 0 < far["rows"] <= beyond < told["kept"] <= 400
    pairs = Genotypes.of([[0, 1], [2, 3]])
    Screen.build(data.cell.genes, pairs, score=0.9, phenotype="fitness").save(here / "fitness")
    assert mistake("nothing-to-test", *words, "fitness").fields["dropped"] == {NO_INTERACTION: 2}
    assert mistake("not-a-run", "evaluate", here).where == here
