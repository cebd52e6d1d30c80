"""Runs that are loaded together."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltacell.errors import InputError
from deltacell.train.loaded_run import load_runs


def test_a_run_counts_once(tmp_path: Path) -> None:
    again = tmp_path / "a" / ".." / "b"
    with pytest.raises(InputError, match="given twice"):
        load_runs([tmp_path / "b", tmp_path / "c", again])


def test_there_has_to_be_one() -> None:
    with pytest.raises(InputError, match="no run was given"):
        load_runs([])
