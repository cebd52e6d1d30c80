"""Faults made on purpose leave what was there, an error that says so, or the right result."""

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from deltacell.data.import_folder import READERS
from deltacell_dev.bench import faults
from deltacell_dev.bench.received import KINDS as RECEIVED


def bench(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Run it in a process of its own: one whose libraries have threads cannot be forked."""
    out = folder / "faults.json"
    command = [sys.executable, "-m", "deltacell", "bench", "faults", *words, "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(out.read_text())
    assert (done.returncode, found["total"]["failures"]) == (0, 0), done.stdout + done.stderr
    rows: list[dict[str, Any]] = found["rows"]
    for row in rows:
        assert row["tries"] == row["clean"] + row["right"] + row["failures"] > 0
    return rows


@pytest.mark.slow
def test_nothing_is_lost_or_misread_whatever_is_damaged_or_fails(tmp_path: Path) -> None:
    # One turn of each kind with one seed, so that failures recur; the bench is for other seeds.
    rows = bench(tmp_path, "--minutes", "0", "--seed", "0")
    kinds = [row["kind"] for row in rows]
    assert {f"fuzz {reader.name}" for reader in READERS} < set(kinds)
    assert {"flip cell", "flip run.json", "fuzz xlsx", "fuzz explanation"} < set(kinds)
    assert {f"received {kind}" for kind in RECEIVED} < set(kinds)
    commands = ["data import", "train", "fit trees", "predict", "predict in two processes"]
    commands += ["evaluate", "start"]
    disturbed = [f"{how} {command}" for how in ("inject", "kill") for command in commands]
    assert kinds[-len(disturbed) :] == disturbed


def test_what_is_accepted_and_wrong_is_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("0123456789" * 100)
    unsealed = {"file": ("file", lambda folder: (folder / "file").read_bytes()[:500])}
    monkeypatch.setattr(faults, "flipped", lambda: unsealed)
    cases = islice(faults.flips(tmp_path, "file", random.Random(0)), 200)
    outcomes = [faults.outcome_of(read, expected) for read, expected in cases]
    assert {(outcome, bool(problem)) for outcome, problem in outcomes} == {
        *(("right", False), ("failures", True)),
    }


def test_an_error_that_is_no_sentence_is_a_failure() -> None:
    assert faults.outcome_of(lambda: {}["missing"]) == ("failures", "KeyError: 'missing'")


@pytest.mark.parametrize("fault", ["kill", "ENOSPC"])
def test_every_operation_can_be_failed(tmp_path: Path, fault: str) -> None:
    number = faults.FAULTS[fault]

    def writes(at: int) -> tuple[int, Any]:
        def work() -> int:
            count = faults.inject(tmp_path, at, number)
            try:
                (tmp_path / "a").write_text("x")
                (tmp_path / "a").replace(tmp_path / "b")
                (tmp_path / "b").unlink()
            except OSError as error:
                return -(error.errno or 0)
            return count()

        return faults.Fork(work).end()[:2]

    assert writes(0) == (0, 3)
    for at in (1, 2, 3):
        assert writes(at) == ((-9, None) if number is None else (0, -number))
