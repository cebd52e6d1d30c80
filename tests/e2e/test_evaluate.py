"""`deltacell evaluate` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def deltacell(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deltacell", *map(str, words)], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    small = ["data.synthetic_genotypes=400", "trainer.epochs=1", "model.hidden=8"]
    done = deltacell("train", "experiment=demo", *small, f"directory={path}")
    assert done.returncode == 0, done.stderr
    assert f"deltacell evaluate {path}" in done.stdout.replace("\n", " ")
    return path


def test_tables_files_and_a_verdict(run: Path, tmp_path: Path) -> None:
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
    assert done.returncode == 0, done.stderr
    assert "the additive baseline on test" in done.stdout
    result = json.loads((tmp_path / "e.json").read_text())
    assert set(result["predictors"]) == {"demo", "global_mean", "additive"}
    assert "| additive |" in (tmp_path / "e.md").read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"demo-predicted.png", "demo-relations.png", "additive-calibration.png"} <= drawn


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    done = deltacell("evaluate", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "this is not a run" in done.stderr
    assert "Traceback" not in done.stderr
