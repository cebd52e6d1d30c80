"""Faults made on purpose leave what was there, an error that says so, or the right result."""

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltacell import storage
from deltacell.base.errors import InputError
from deltacell.base.files import _remove_abandoned, read_json, write_json
from deltacell.data.import_folder import READERS
from deltacell.train.checkpoints import Checkpoints
from deltacell_dev.bench import faults
from deltacell_dev.bench.received import KINDS as RECEIVED

QUICK = (
    *("flip", "fuzz", "habit", "received", "inject data", "inject train", "inject predict"),
    "inject evaluate",
)
"""First words of the kinds that have a turn in CI."""


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
    # Kills of commands take minutes and are for .ci/full, as are faults of those that take longest.
    rows = bench(tmp_path, "--minutes", "0", "--seed", "0", "--only", ",".join(QUICK))
    kinds = [row["kind"] for row in rows]
    assert {f"fuzz {reader.name}" for reader in READERS} < set(kinds)
    assert {"flip cell", "flip run.json", "fuzz xlsx", "fuzz explanation"} < set(kinds)
    assert {f"received {kind}" for kind in RECEIVED} < set(kinds)
    assert {"inject data import", "inject train", "inject predict", "inject evaluate"} < set(kinds)


def test_all_kinds_of_disturbed_commands_have_an_injection_and_a_kill(tmp_path: Path) -> None:
    commands = {"data import", "train", "fit trees", "predict", "predict in two processes"}
    commands |= {"evaluate", "start"}
    assert set(faults.COMMANDS) == commands
    with pytest.raises(InputError) as caught:
        faults.run(only="nothing")
    for command in commands:
        assert f"inject {command}" in str(caught.value)
        assert f"kill {command}" in str(caught.value)


def test_kills_of_successive_turns_cover_all_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed: list[tuple[int, str]] = []

    class Recorded(faults.Experiment):
        def disturb(self, at: int, fault: str) -> None:
            disturbed.append((at, fault))

    def experiment(artefacts: Path, command: faults.Command) -> faults.Experiment:
        return Recorded(artefacts, command, None, None, n_operations=10)

    monkeypatch.setattr(faults.Experiment, "of", experiment)
    for turn in range(3):
        for call, _ in faults.kills(tmp_path, "train", turn):
            call()
    assert disturbed == [(at, "kill") for at in (*range(1, 11), 1, 2)]


def write_file(folder: Path, content: str) -> None:
    write_json(folder / "file.json", {"content": content}, what="the file")


def read_file(folder: Path) -> str:
    content: str = read_json(folder / "file.json", what="the file")["content"]
    return content


def save_checkpoint(folder: Path, content: str) -> None:
    step = {"old": 1, "new": 2}[content]
    Checkpoints(folder / "run").save({"content": content}, step=step, epoch=step)


def last_checkpoint(folder: Path) -> str:
    content: str = Checkpoints(folder / "run").load()["content"]
    return content


def replace_directory(folder: Path, content: str) -> None:
    storage.write(
        folder / "notes", "notes", {"names": pa.table({"name": [content]})}, {}, overwrite=True
    )


def read_directory(folder: Path) -> str:
    content: str = storage.read(folder / "notes", "notes").parts["names"]["name"][0].as_py()
    return content


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (write_file, read_file),
        (save_checkpoint, last_checkpoint),
        (replace_directory, read_directory),
    ],
)
def test_a_write_that_is_killed_at_any_operation_leaves_the_old_or_the_new(
    tmp_path: Path, write: Any, read: Any
) -> None:
    def replaced(folder: Path, at: int) -> tuple[int, int]:
        """Write the old content, and the new one with a kill; return exit code and operations."""
        write(folder, "old")

        def work() -> int:
            count = faults.inject(folder, at, None)
            write(folder, "new")
            return count()

        code, result, _ = faults.Fork(work).end()
        return code, 0 if result is None else result

    code, n_operations = replaced(tmp_path / "whole", 0)
    assert (code, read(tmp_path / "whole")) == (0, "new")
    # It is opened, flushed, renamed, and its folder flushed.
    assert n_operations >= 4
    contents = []
    for at in range(1, 1 + n_operations):
        folder = tmp_path / str(at)
        assert replaced(folder, at)[0] == -9
        contents.append(read(folder))
        _remove_abandoned.cache_clear()
        write(folder, "new")
        assert read(folder) == "new"
        assert list(folder.rglob("*.tmp")) == []
    # Old up to some operation, and new from there on.
    assert sorted(contents, reverse=True) == contents
    assert set(contents) == {"old", "new"}


def test_a_wrong_value_that_is_accepted_counts_as_a_failure(
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
