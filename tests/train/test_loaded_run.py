"""Runs that are loaded together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltacell.errors import InputError
from deltacell.train.loaded_run import load_runs


def test_a_run_counts_once(tmp_path: Path) -> None:
    again = tmp_path / "a" / ".." / "b"
    with pytest.raises(InputError, match="given twice"):
        load_runs([tmp_path / "b", tmp_path / "c", again])


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
