"""`deltacell evaluate` as it is typed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deltacell.cell import Cell
from deltacell.screen import Genotypes, Screen
from deltacell.screen.import_folder import Imported
from deltacell.train.loaded_run import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory, typed):
    path = tmp_path_factory.mktemp("runs") / "run"
    small = ["data.synthetic_genotypes=400", "trainer.epochs=1", "model.hidden=8"]
    done = typed(path.parent, "train", "experiment=demo", *small, f"directory={path}")
    assert f"deltacell evaluate {path}" in done.stdout.replace("\n", " ")
    return path


def test_tables_files_and_a_verdict(deltacell, run, tmp_path):
    files = {name: tmp_path / name for name in ("json", "markdown", "figures")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    done = deltacell("evaluate", run, "--baselines", "global_mean,additive", *options)
    assert "has the highest Pearson correlation on test" in done.stdout
    result = json.loads(files["json"].read_text())
    assert set(result["predictors"]) == {"demo", "global_mean", "additive"}
    assert "| additive |" in files["markdown"].read_text()
    drawn = {path.name for path in files["figures"].iterdir()}
    assert {"demo-predicted.png", "demo-relations.png", "additive-calibration.png"} <= drawn


def test_another_screen_as_the_test(deltacell, run, tmp_path):
    data = load_run(run).data
    fresh = Screen.synthetic(data.cell, n=500, seed=3)
    trained = data.screen.take(np.concatenate([data.split.train, data.split.validation]))
    Imported(data.cell, {"other": Screen.concat([fresh, trained])}).save(tmp_path / "import")
    on = ["--on", tmp_path / "import", "--baselines", "additive", "--beyond", "0.1"]
    done = deltacell("evaluate", run, *on, "--json", tmp_path / "on.json")
    result = json.loads((tmp_path / "on.json").read_text())
    told, far = result["on"], result["groups"][-1]
    assert "Tested on another screen" in done.stdout
    assert told["dropped"]["in training or validation"] >= len(trained)
    assert told["kept"] == told["read"] - sum(told["dropped"].values())
    assert (told["read"], told["kept"]) == (500 + len(trained), result["groups"][0]["rows"])
    assert f"{told['kept']:,} of its {told['read']:,} rows" in result["leakage"]
    beyond = (np.abs(fresh.column("score")) >= np.float32(0.1)).sum()
    assert (far["by"], set(far["scores"])) == ("beyond", {"demo", "additive"})
    assert 0 < far["rows"] <= beyond < told["kept"] <= 500
    pairs = Genotypes.of([[0, 1], [2, 3]])
    fitness = Screen.build(Cell.synthetic("demo").genes, pairs, score=0.9, phenotype="fitness")
    fitness.save(tmp_path / "fitness")
    refused = deltacell("evaluate", run, "--on", tmp_path / "fitness", code=2)
    assert "(no interaction score: 2)" in refused.stderr
    assert "not a run directory" in deltacell("evaluate", tmp_path, code=2).stderr
