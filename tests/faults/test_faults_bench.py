"""Faults made on purpose leave what was there, an error that says so, or the right result."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deltacell.bench import faults


def bench(folder: Path, *words: str) -> dict[str, Any]:
    """Run it in a process of its own: one whose libraries have threads cannot be forked."""
    out = folder / "faults.json"
    command = [sys.executable, "-m", "deltacell", "bench", "faults", *words, "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(out.read_text())
    assert (done.returncode, found["total"]["failures"]) == (0, 0), done.stdout + done.stderr
    return found


def test_no_damaged_file_and_no_hostile_one_is_misread(tmp_path: Path) -> None:
    found = bench(tmp_path, "--minutes", "0", "--only", "flip,fuzz")
    assert found["total"]["tries"] >= len(found["rows"]) > 25
    for row in found["rows"]:
        assert row["tries"] == row["clean"] + row["right"] + row["failures"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["data import", "train", "predict", "evaluate"])
def test_a_command_that_is_killed_or_refused_ends_as_if_it_had_not_been(
    tmp_path: Path, command: str
) -> None:
    seed = str(random.randrange(10**6))
    found = bench(tmp_path, "--minutes", "0.25", "--seed", seed, "--only", f"inject {command}")
    (row,) = found["rows"]
    assert row["tries"] > 0


def test_what_is_accepted_and_wrong_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("0123456789" * 100)
    unsealed = {"file": ("file", lambda folder: (folder / "file").read_bytes()[:500])}
    monkeypatch.setattr(faults, "FLIPPED", unsealed)
    row = faults.Row("flip file")
    faults._flips(tmp_path, "file", 0.2, row, seed=0)
    assert 0 < row.failures < row.tries == row.right + row.failures
    assert "seed 0" in row.examples[0]


def test_an_error_that_is_no_sentence_is_a_failure() -> None:
    row = faults.Row("fuzz")
    faults._outcome(lambda: {}["missing"], row, "case 1")
    assert (row.failures, row.tries) == (1, 1)
    assert "KeyError" in row.examples[0]


@pytest.mark.parametrize("fault", ["kill", "ENOSPC"])
def test_every_operation_can_be_failed(tmp_path: Path, fault: str) -> None:
    def writes(at: int | None) -> tuple[int, bytes]:
        def work() -> int:
            count = faults._inject(tmp_path, at, faults.FAULTS[fault])
            try:
                (tmp_path / "a").write_text("x")
                (tmp_path / "a").replace(tmp_path / "b")
                (tmp_path / "b").unlink()
            except OSError as error:
                return -(error.errno or 0)
            return count()

        return faults._forked(work)

    assert writes(None) == (0, b"3")
    for at in (1, 2, 3):
        code, found = writes(at)
        number = faults.FAULTS[fault]
        assert (code, found) == ((-9, b"") if number is None else (0, str(-number).encode()))
