"""`deltacell evaluate` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_a_directory_that_is_no_run(deltacell: Run, tmp_path: Path) -> None:
    done = deltacell("evaluate", tmp_path, code=2)
    assert done.stderr.startswith("error: ")
    assert "this is not a run" in done.stderr
