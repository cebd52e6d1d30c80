"""Runs that are loaded together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deltacell.errors import InputError
from deltacell.train.compose import compose
from deltacell.train.loaded_run import LoadedRun, labels_of, load_runs


def test_a_run_counts_once(tmp_path: Path) -> None:
    again = tmp_path / "a" / ".." / "b"
    with pytest.raises(InputError, match="given twice"):
        load_runs([tmp_path / "b", tmp_path / "c", again])


def made(folder: str, *words: str) -> LoadedRun:
    """Return a run, as far as its label is concerned."""
    config = compose(["model=dango", "data.synthetic=demo", *words])
    record = SimpleNamespace(name=config.name, seed=config.seed, path=Path("runs") / folder)
    return cast(LoadedRun, SimpleNamespace(record=record, config=config))


def test_seeds_of_the_same_settings_have_one_label() -> None:
    several = [made(f"s{seed}", "name=mine", f"seed={seed}") for seed in (0, 1, 4)]
    assert labels_of(several) == ["mine"] * 3
    assert labels_of([*several, made("h", "name=other")]) == [*["mine"] * 3, "other"]
    # Other settings, or a seed for the second time: the directory tells them apart.
    assert labels_of([*several[:2], made("b", "name=mine", "seed=2", "model.hidden=8")]) == [
        *("s0", "s1", "b")
    ]
    assert labels_of([several[0], made("again", "name=mine", "seed=0")]) == ["s0", "again"]


def test_a_run_without_a_name_is_called_by_its_directory() -> None:
    assert labels_of([made("a")]) == ["a"]
    assert labels_of([made("a"), made("b", "model=hetero_cell", "seed=1")]) == ["a", "b"]
    assert labels_of([made("a"), made("b", "seed=1")]) == ["run", "run"]


def test_what_only_training_needs_is_not_loaded() -> None:
    """It takes seconds, and a prediction should not wait for it."""
    needed = "deltacell.predict.ensemble, deltacell.evaluate.runs, deltacell.train.loaded_run"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, {needed}; print('lightning' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"


def test_there_has_to_be_one() -> None:
    with pytest.raises(InputError, match="no run was given"):
        load_runs([])
