"""The verbs on objects: what a notebook does, and that the command line sees the same runs."""

import dataclasses
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import deltacell as dc
from deltacell.cli.app import app
from deltacell.data.import_folder import Imported
from deltacell.models import registry
from deltacell.profile import explain as profile_explain
from deltacell.profile.fit_phases import read_fit_phases
from deltacell.screen.genotypes import Genotypes
from deltacell.train.config.choose_settings import suited_config
from deltacell.train.config.compose import with_settings


def typed(*words: str) -> int:
    return app(list(words), standalone_mode=False) or 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cell, a screen, a split and a run of ``pairs``, none of them from a file."""
    folder = tmp_path_factory.mktemp("verbs")
    cell = dc.Cell.synthetic("demo")
    screen = dc.Screen.synthetic(cell, n=300)
    split = dc.Split.gene(screen, seed=0)
    run = dc.fit(
        "pairs",
        cell,
        screen,
        split,
        rounds=10,
        directory=folder / "runs" / "pairs",
        progress=False,
    )
    return cell, screen, split, run


def test_the_example_of_a_notebook(made):
    cell, screen, split, run = made
    assert run.history.plot().get_xlabel() == "epoch"
    found = run.predict([(cell.genes[0], cell.genes[1]), (cell.genes[2], cell.genes[3])])
    assert list(found.columns)[:3] == ["gene1", "gene2", "score"]
    assert len(found) == 2
    table = dc.evaluate([run, "additive"], screen, split, progress=False)
    frame = table.to_pandas()
    assert set(frame["predictor"]) == {"pairs", "additive"}
    assert table.plot().get_xlabel().startswith("Pearson")
    top = dc.rank(run, sets="pairs", top=10, progress=False)
    rows = top.to_pandas()
    assert list(rows["rank"][:10]) == list(range(1, 11))
    again = run.predict(list(rows["genes"]))
    np.testing.assert_allclose(again["score"], rows["score"], rtol=1e-5)
    pd.testing.assert_frame_equal(again, run.predict(pd.DataFrame(list(rows["genes"]))))
    pd.testing.assert_frame_equal(
        again, run.predict(pl.DataFrame(list(rows["genes"]), orient="row"))
    )
    # A ranking that is there is read.
    changed = top.path.stat().st_mtime_ns
    top = dc.rank(run, sets="pairs", top=10, progress=False)
    assert top.path.stat().st_mtime_ns == changed
    why = top.why(*rows["names"][0])
    assert why.score == pytest.approx(float(rows["score"][0]), rel=1e-5)
    for shown in (cell, screen, split, run, run.history, table, top, why):
        assert shown._repr_html_().startswith("<div>")
        assert "<table" in shown._repr_html_()


def test_public_names_mean_one_thing(made):
    cell, *_, run = made
    assert isinstance(run.why(cell.genes[0], cell.genes[1]), dc.ScoreExplanation)
    assert dc.Explanation is profile_explain.Explanation
    assert dc.explain.__annotations__["return"] == dc.Explanation.__name__


@pytest.mark.parametrize(
    ("former", "name", "present", "new_name"),
    [
        ("evaluate", "evaluate", "evaluation", "evaluate_predictions"),
        ("evaluate", "Bootstrap", "evaluation", "Bootstrap"),
        ("evaluate", "draw_figures", "api.figures", "draw_figures"),
        ("evaluate.figures", "draw_figures", "api.figures", "draw_figures"),
        ("screen.import_folder", "import_folder", "data.import_folder", "import_folder"),
    ],
)
def test_a_former_name_warns_with_the_present_one(monkeypatch, former, name, present, new_name):
    # Importing deltacell.evaluate replaces the attribute of the package.
    monkeypatch.setattr(dc, "evaluate", dc.evaluate, raising=False)
    module = import_module(f"deltacell.{former}")
    with pytest.warns(DeprecationWarning, match=rf"is now deltacell\.{present}\.{new_name}"):
        found = getattr(module, name)
    assert found is getattr(import_module(f"deltacell.{present}"), new_name)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_the_verb_evaluate_works_after_its_former_package_was_imported(monkeypatch, refused):
    monkeypatch.setattr(dc, "evaluate", dc.evaluate, raising=False)
    package = import_module("deltacell.evaluate")
    refused("no-run", package, "additive")


def test_a_string_is_no_set(made, refused):
    cell, *_, run = made
    refused("not-a-set", run.predict, [cell.genes[0] + cell.genes[1]])
    refused("not-a-set", run.predict, cell.genes[0])
    refused("not-a-set", dc.rank, run, [cell.genes[0]], progress=False)


def test_a_fit_accounts_for_its_time(made):
    *_, run = made
    phases = read_fit_phases(run.path / "phases")
    # The data were read before the fit.
    assert {"columns", "folds", "trees", "validation"} <= set(phases["phase"])
    assert phases["seconds"].min() >= 0
    assert dc.explain(run.path).sentence == run.record.limits


def test_a_ranking_knows_the_genes_that_were_ranked(made, tmp_path):
    *_, run = made
    (loaded,) = dc.rank(run, sets="pairs", top=5, progress=False).runs
    genes, file = loaded.data.cell.genes, tmp_path / "few.txt"
    file.write_text("".join(f"{genes[i]}\n" for i in (5, 1, 3)))
    measured = sorted(set(loaded.data.screen.genotypes.genes.tolist()))
    for named, expected in (
        ({"genes": "screen"}, measured),
        ({"genes": file}, [1, 3, 5]),
        ({"sets": f"with {genes[0]}", "genes": file}, [0, 1, 3, 5]),
        ({"sets": [(genes[4], genes[2]), (genes[2], genes[7])]}, [2, 4, 7]),
    ):
        for _ in range(2):  # The second time it is read from its file.
            found = dc.rank(run, top=3, status="any", progress=False, **named)
            assert list(found.genes) == expected


def test_a_page_has_the_measured_sets_next_to_each_set(made, tmp_path, refused):
    cell, *_, run = made
    top = dc.rank(run, sets="pairs", top=10, progress=False)
    data = top.page_data("https://example.org/{gene}?q={name}")
    voted = [row for row in data["rows"] if row["votes"]]
    assert voted
    for row in voted[:3]:
        expected = run.why(*row["names"]).votes().iloc[0]
        assert row["votes"][0]["names"] == expected["names"]
    sets = [cell.genes.indices(row["genes"]).tolist() for row in data["rows"]]
    lost = cell.metabolism.lost_together(Genotypes.of(sets))
    names = [[cell.metabolism.reactions[r] for r in lost.of(i)] for i in range(len(sets))]
    assert [row["lost"] for row in data["rows"]] == names
    assert data["gene_facts"][0]["link"].startswith("https://example.org/Y")
    refused("invalid-link", top.page_data, "javascript:alert({gene})")
    assert "measured next to it" in top.page(tmp_path / "page.html").read_text()


def test_a_ranking_says_how_many_hits_it_expects(tmp_path):
    cell = dc.Cell.synthetic("demo")
    whole = dc.Screen.synthetic(cell, n=600)
    hits = whole.take(np.abs(whole.column("score")) > 0.1)
    scored = zip(hits.genotypes, hits.column("score"), strict=True)
    rows = [[*(cell.genes[int(g)] for g in one), score] for one, score in scored if len(one) == 2]
    screen = dc.Screen.from_pandas(pd.DataFrame(rows, columns=["Query", "Array", "score"]), cell)
    run = dc.fit("pairs", cell, screen, rounds=5, directory=tmp_path / "run", progress=False)
    top = dc.rank(run, sets="pairs", top=200, status="any", progress=False)
    expected = top.expected_hits
    first = top.to_pandas().query("end == 'lowest' and rank <= 100")
    found = run.predict(list(first["genes"]))
    assert expected["lowest"] == pytest.approx(found["hit"].sum(), rel=1e-5)
    assert any("Expected to be hits" in sentence for sentence in top.to_json()["sentences"])


def test_a_run_of_python_is_a_run_of_the_command_line_and_the_reverse(made, tmp_path, capsys):
    *_, run = made
    out = tmp_path / "pairs.parquet"
    assert typed("predict", str(run.path), "--sets", "pairs", "--top", "5", "--out", str(out)) == 0
    mine = dc.rank(run, sets="pairs", top=5, progress=False).to_pandas()
    pd.testing.assert_frame_equal(pd.read_parquet(out), mine)
    genes = " ".join(mine["names"][0])
    page = tmp_path / "why.html"
    assert typed("why", str(run.path), genes, "--html", str(page)) == 0
    assert str(run.why(*mine["names"][0])).splitlines()[0] in capsys.readouterr().out
    assert "Content-Security-Policy" in page.read_text()
    path = tmp_path / "typed"
    small = ("data.synthetic=demo", "data.synthetic_genotypes=150")
    assert typed("train", "model=additive", *small, f"directory={path}") == 0
    run = dc.Run(path)
    rows = run.loaded.data.split.test
    genotypes, _ = run.loaded.data.part(rows)
    sets = [[run.loaded.data.cell.genes[g] for g in one] for one in genotypes]
    found = run.predict(sets)["score"].to_numpy()
    np.testing.assert_array_equal(found, run.loaded.predictor(genotypes).double().numpy())
    assert run.history.to_pandas()["validation_pearson"].notna().any()


def test_data_on_the_disk_stay_where_they_are(made, tmp_path):
    cell, screen, *_ = made
    cell.save(tmp_path / "cell")
    screen.save(tmp_path / "screen")
    loaded = dc.Cell.load(tmp_path / "cell"), dc.Screen.load(tmp_path / "screen")
    run = dc.fit("additive", *loaded, directory=tmp_path / "runs" / "a", progress=False)
    assert Path(run.config.data.cell) == tmp_path / "cell"
    assert not (tmp_path / "runs" / "data").exists()
    # A cell that was changed is no longer the one on the disk.
    changed = loaded[0].with_relations(list(cell.relations)[:1])
    other = dc.fit("additive", changed, loaded[1], directory=tmp_path / "runs" / "b")
    assert Path(other.config.data.cell).parent == tmp_path / "runs" / "data"
    assert other.loaded.data.cell.equals(changed)


def test_a_split_of_ones_own_is_kept(made, tmp_path, refused):
    cell, screen, split, _ = made
    own = dataclasses.replace(split, train=split.train[:-5], dropped=split.train[-5:])
    run = dc.fit("additive", cell, screen, own, directory=tmp_path / "own", progress=False)
    assert run.config.split.method == "saved"
    for part in ("train", "validation", "test", "dropped"):
        kept = getattr(dc.Run(run.path).loaded.data.split, part)
        np.testing.assert_array_equal(kept, getattr(own, part))
    refused(
        "other-split",
        dc.evaluate,
        run,
        screen,
        dc.Split.random(screen, seed=3),
        progress=False,
    )


def parts_of(split):
    return [getattr(split, part).tolist() for part in ("train", "validation", "test", "dropped")]


def test_a_split_by_names_is_kept(made, tmp_path):
    cell, screen, split, _ = made
    rows = [*split.train[:40], *split.validation[:10], *split.test[:10]]
    genotypes = screen.genotypes.take(torch.tensor(np.array(rows)))
    sets = [[cell.genes[int(gene)] for gene in genes] for genes in genotypes]
    named = dc.Split.named(screen, sets, ["train"] * 40 + ["validation"] * 10 + ["test"] * 10)
    run = dc.fit("additive", cell, screen, named, directory=tmp_path / "a", progress=False)
    assert parts_of(dc.Run(run.path).loaded.data.split) == parts_of(named)


def test_splits_with_the_same_rows_of_two_screens_are_two_splits(made, tmp_path):
    cell, screen, *_ = made
    rows = np.arange(60)
    for name, start in (("a", 0), ("b", 60)):
        part = screen.take(rows + start)
        own = dataclasses.replace(
            dc.Split.random(part),
            train=rows[:40],
            validation=rows[40:50],
            test=rows[50:],
            unseen=[],
            validation_unseen=[],
        )
        run = dc.fit("additive", cell, part, own, directory=tmp_path / name, progress=False)
        loaded = dc.Run(run.path).loaded.data
        assert parts_of(loaded.split) == parts_of(own)
        assert loaded.screen.column("score").tolist() == part.column("score").tolist()


@pytest.mark.parametrize("kind", ["name", "module"])
def test_a_network_is_trained(made, tmp_path, kind):
    cell, screen, split, _ = made
    cell = cell.with_relations(["physical"])
    model = "dango"
    if kind == "module":
        model = dc.Dango(cell, ["physical"], {"physical": 1.0}, hidden=8, heads=2)
    options = {"hidden": 8, "heads": 2} if kind == "name" else {}
    options["settings"] = {"loggers.tensorboard": False, "trainer.figures_every": 0}
    options |= {"epochs": 2, "directory": tmp_path / "net", "progress": False}
    run = dc.fit(model, cell, screen, split, **options)
    assert run.config.model.hidden == 8
    assert run.config.model.lambdas == {"physical": 1.0}
    assert len(run.history) == 2
    longer = run.resume(epochs=3, progress=False)
    assert len(longer.history) == 3


def test_a_model_of_unknown_class_and_a_screen_without_scores_are_refused(made, refused):
    cell, screen, split, _ = made
    empty = dc.Screen.build(cell.genes, Genotypes.of([[0, 1]]))
    for model in ("pears", object()):
        refused("unknown-model", dc.fit, model, cell, screen, split)
    refused("missing-target", dc.fit, "pairs", cell, empty)
    refused("no-run", dc.evaluate, "additive")


def test_settings_suit_the_model_and_the_size_of_the_screen(made, tmp_path, refused):
    cell, screen, split, _ = made
    with pytest.warns(UserWarning, match="no epochs"):
        dc.fit("pairs", cell, screen, split, epochs=2, rounds=2, directory=tmp_path / "run")
    trees, dango = (registry.config_class(name)() for name in ("pair_trees", "dango"))
    assert trees.settings_for(cell, screen) == {"model.leaves": 7}
    few = dango.settings_for(cell.with_relations(["physical"]), screen)
    assert few["model.relations"] == ["physical"]
    assert few["data.batch_size"] == 32
    config = suited_config(["data.synthetic=demo"])[0]
    refused("unknown-key", with_settings, config, {"trainer.epoch": 3})
    refused("out-of-range", with_settings, config, {"trainer.epochs": 0})


def test_train_without_an_experiment_picks_one_and_says_so(made, tmp_path, capsys):
    cell, screen, *_ = made
    both = dc.Screen.concat([screen, screen.take(range(10))])
    screens = {"few": screen.take(range(50)), "many": both}
    Imported(cell, screens).save(tmp_path / "data")
    folder = f"data.folder={tmp_path / 'data'}"
    config, settings = suited_config([folder, "model.rounds=3"])
    assert (config.model.name, config.model.rounds) == ("pair_trees", 3)
    assert (config.data.screen, config.data.merge) == ("many", "mean")
    assert settings["data.screen"] == "many"
    chosen = suited_config([folder, "data.screen=few", "model.leaves=4"])[0]
    assert (chosen.data.screen, chosen.model.leaves, chosen.data.merge) == ("few", 4, None)
    words = (folder, "model.rounds=3", f"directory={tmp_path / 'run'}")
    assert typed("train", *words) == 0
    assert "pair_trees" in capsys.readouterr().err
    assert dc.Run(tmp_path / "run").config.data.screen == "many"


WITHOUT_REPORT = """
import sys

class NoReport:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("deltacell.report"):
            raise ImportError(f"{name} is not needed to compute")

sys.meta_path.insert(0, NoReport())

import deltacell.api.evaluate, deltacell.api.fit, deltacell.api.rank, deltacell.api.start
from deltacell.cell import Cell
from deltacell.evaluation import Bootstrap, baselines, evaluate_predictions
from deltacell.evaluation.figure_values import figure_values
from deltacell.screen import Screen, Split

cell = Cell.synthetic("demo")
screen = Screen.synthetic(cell, n=200)
split = Split.random(screen)
predictions = baselines(cell, screen, split, ["additive"])
figure_values(cell, screen, split, predictions)
evaluation = evaluate_predictions(cell, screen, split, predictions, bootstrap=Bootstrap(5))
print(evaluation.to_json()["verdicts"][0]["best"])
"""


def test_computing_does_not_need_what_renders():
    command = [sys.executable, "-c", WITHOUT_REPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "additive", done.stderr
