"""`deltacell explain` as it is typed, on runs that were really trained."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deltacell.train.compose import compose
from deltacell.train.run import train

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = [
    "experiment=demo",
    "data.synthetic_genotypes=150",
    "data.batch_size=8",
    "trainer.epochs=2",
    "trainer.threads=1",
    "trainer.figures_every=0",
    "loggers.tensorboard=false",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of a model that is much larger."""
    folder = tmp_path_factory.mktemp("runs")
    for name, hidden in (("small", 8), ("large", 768)):
        train(compose([*SMALL, f"model.hidden={hidden}", f"directory={folder / name}"]))
    return folder / "small", folder / "large"


def test_one(deltacell: Run, runs: tuple[Path, Path]) -> None:
    said = " ".join(deltacell("explain", runs[0]).stdout.split())
    assert " takes " in said
    assert "A step of small takes" in said
    assert "where the time goes" in said


def test_two_with_files_and_a_check_that_fails(
    deltacell: Run, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    done = deltacell(
        "explain",
        *runs,
        "--json",
        "e.json",
        "--markdown",
        "e.md",
        "--fail-if",
        "slower > 20%",
        code=1,
    )
    assert done.stderr.startswith("failed: slower > 20%: it is ")
    said = " ".join(done.stdout.split())
    assert said.startswith("large takes ")
    assert "not equal in both - parameters: " in said
    result = json.loads((tmp_path / "e.json").read_text())
    fall = result["waterfalls"][0]
    assert fall["per"] == "sample"
    assert sum(bar["change_s"] for bar in fall["bars"]) == pytest.approx(fall["gap_s"])
    assert fall["a_s"] + fall["gap_s"] == pytest.approx(fall["b_s"])
    assert (tmp_path / "e.md").read_text().startswith("**large takes ")


def test_a_check_that_holds(deltacell: Run, runs: tuple[Path, Path]) -> None:
    deltacell("explain", *reversed(runs), "--fail-if", "slower > 20%")


def test_a_check_that_cannot_be_read(deltacell: Run, runs: tuple[Path, Path]) -> None:
    done = deltacell("explain", *runs, "--fail-if", "slower", code=2)
    assert done.stderr.startswith("error: 'slower' is not a condition")


def test_what_is_not_there(deltacell: Run) -> None:
    done = deltacell("explain", "none", code=2)
    assert done.stderr.startswith("error: none: there is nothing here")
