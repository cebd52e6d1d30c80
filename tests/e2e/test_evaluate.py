"""`deltacell evaluate` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltacell.cell import Cell
from deltacell.screen import Genotypes, Screen
from deltacell.train.loaded_run import load_run

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, typed: Run) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    small = ["data.synthetic_genotypes=400", "trainer.epochs=1", "model.hidden=8"]
    done = typed(path.parent, "train", "experiment=demo", *small, f"directory={path}")
    assert f"deltacell evaluate {path}" in done.stdout.replace("\n", " ")
    return path


def test_tables_files_and_a_verdict(deltacell: Run, run: Path, tmp_path: Path) -> None:
    done = deltacell(
        "evaluate",
        run,
        "--baselines",
        "global_mean,additive",
        "--json",
        tmp_path / "e.json",
        "--markdown",
        tmp_path / "e.md",
        "--figures",
        tmp_path / "figures",
    )
    assert "has the highest Pearson correlation on test" in done.stdout
    result = json.loads((tmp_path / "e.json").read_text())
    assert set(result["predictors"]) == {"demo", "global_mean", "additive"}
    assert "| additive |" in (tmp_path / "e.md").read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"demo-predicted.png", "demo-relations.png", "additive-calibration.png"} <= drawn


def test_another_screen_as_the_test(deltacell: Run, run: Path, tmp_path: Path) -> None:
    data = load_run(run).data
    fresh = Screen.synthetic(data.cell, n=500, seed=3)
    trained = data.screen.take(np.concatenate([data.split.train, data.split.validation]))
    other = Screen.concat([fresh, trained])
    other.save(tmp_path / "import" / "screens" / "other")
    done = deltacell(
        "evaluate",
        run,
        "--on",
        tmp_path / "import",
        "--baselines",
        "additive",
        "--beyond",
        "0.1",
        "--json",
        tmp_path / "on.json",
        "--figures",
        tmp_path / "figures",
    )
    result = json.loads((tmp_path / "on.json").read_text())
    on = result["on"]
    assert "Tested on another screen" in done.stdout
    assert on["read"] == 500 + len(trained)
    assert on["dropped"]["in training or validation"] >= len(trained)
    assert on["kept"] == on["read"] - sum(on["dropped"].values()) == result["groups"][0]["rows"]
    assert f"{on['kept']:,} of its {on['read']:,} rows" in result["leakage"]
    far = result["groups"][-1]
    assert far["by"] == "beyond"
    score = fresh.column("score")
    assert 100 < on["kept"] <= 500
    assert 0 < far["rows"] <= (np.abs(score) >= np.float32(0.1)).sum()
    assert set(far["scores"]) == {"demo", "additive"}
    assert (tmp_path / "figures" / "demo-predicted.png").is_file()


def test_a_screen_of_fitness_cannot_be_the_test(deltacell: Run, run: Path, tmp_path: Path) -> None:
    cell = Cell.synthetic("demo")
    fitness = Screen.build(
        cell.genes, Genotypes.of([[0, 1], [2, 3]]), score=0.9, phenotype="fitness"
    )
    fitness.save(tmp_path / "fitness")
    done = deltacell("evaluate", run, "--on", tmp_path / "fitness", code=2)
    assert "no row of the screen has an interaction score" in done.stderr


def test_a_directory_that_is_no_run(deltacell: Run, tmp_path: Path) -> None:
    done = deltacell("evaluate", tmp_path, code=2)
    assert done.stderr.startswith("error: ")
    assert "this is not a run" in done.stderr
