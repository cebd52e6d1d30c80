"""`deltacell train` and `deltacell modes`, as they are typed."""

import json
import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from deltacell.cli.app import app
from deltacell.profile.phase_rows import read_phases
from deltacell.profile.record import Status, read_run
from deltacell.train.comparing import trials
from deltacell.train.config.compose import compose
from deltacell.train.config.saved import from_yaml

Run = Callable[..., Any]


def typed(*words: str | Path) -> Result:
    """Run a command in this process, which is faster."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def finished(tmp_path: Path, training: ModuleType) -> Path:
    """A run of one epoch."""
    path = tmp_path / "run"
    assert typed("train", *training.SMALL, "trainer.epochs=1", f"directory={path}").exit_code == 0
    return path


def test_a_run_says_where_it_is_what_limits_it_and_what_to_type_next(tmp_path, training):
    path = tmp_path / "run"
    more = ["trainer.epochs=2", "trainer.figures_every=1", "loggers.tensorboard=true"]
    said = typed("train", *training.SMALL, *more, f"directory={path}").output
    assert f"Finished: {path} (best validation Pearson" in said
    assert f"Test it with: deltacell evaluate {path}" in said
    assert "samples per second, steady steps" in said
    record = read_run(path)
    assert record.status is Status.finished
    assert record.limits is not None
    assert record.limits in said
    files = "checkpoints config.yaml figures metrics.csv phases run.json split tensorboard"
    assert sorted(e.name for e in path.iterdir() if e.name[0] != ".") == files.split()
    figures = sorted(file.name for file in (path / "figures").iterdir())
    assert figures == ["learning.svg", "validation-epoch0001.png", "validation-epoch0002.png"]
    assert list((path / "tensorboard").glob("events.*"))


def test_cfg_job_prints_the_whole_config_and_trains_nothing(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    said = typed("train", "experiment=demo", "trainer.epochs=7", "--cfg", "job").output
    assert from_yaml(said) == compose(["experiment=demo", "trainer.epochs=7"])
    assert list(tmp_path.iterdir()) == []
    refused("unknown-name", typed, "train", "experiment=demo", "--cfg", "hydra")


def test_resuming_what_is_not_there_or_is_done(finished, tmp_path, refused):
    refused("not-a-run", typed, "train", "--resume", tmp_path / "nowhere")
    refused("conflicting-settings", typed, "train", "experiment=demo", "--from", "best")
    again = ["train", "--resume", finished]
    refused("already-finished", typed, *again)
    refused("no-checkpoint", typed, *again, "--from", "step-9.ckpt", "trainer.epochs=2")
    assert read_run(finished).status is Status.finished
    said = typed(*again, "trainer.epochs=9", "--cfg", "job").output
    assert from_yaml(said).trainer.epochs == 9
    assert from_yaml((finished / "config.yaml").read_text()).trainer.epochs == 1
    assert "Finished" in typed(*again, "--from", "best", "trainer.epochs=2").output


@pytest.mark.slow
def test_modes_are_shown_side_by_side(deltacell, training, tmp_path, monkeypatch):
    def here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "deltacell", "train"]
        (word,) = [word for word in command if word.startswith("directory=")]
        path = Path(word.removeprefix("directory=").strip("'"))
        result = typed(*command[3:])
        mode, record = path.name, read_run(path)
        assert (record.status, record.mode) == (Status.finished, mode)
        assert re.search(rf"^ *{mode} +[\d,.]+ +[\d,.]+ +[\d,.]+", result.output, re.MULTILINE)
        assert ("deltacell evaluate" in result.output) is (mode == "train")
        assert read_phases(path / "phases")["kind"].to_list().count("train") == 4
        assert (path / "checkpoints").exists() is (mode == "train")
        return subprocess.CompletedProcess(command, result.exit_code)

    # The test of the page on training has one of them in a process of its own.
    monkeypatch.setattr(trials, "subprocess", SimpleNamespace(run=here))
    file = tmp_path / "modes.json"
    options = ("--steps", "4", "--repeats", "1", "--json", file)
    said = deltacell("modes", *training.SMALL, *options).stdout
    for part in ("forward and loss", "backward and communication", "optimizer"):
        assert part in said
    result = json.loads(file.read_text())
    found = {row["mode"]: row["summary"] for row in result["modes"]}
    assert list(found) == ["empty", "data", "forward", "step", "train", "fixed"]
    for mode, summary in found.items():
        assert re.search(rf"^ *{mode} ", said, re.MULTILINE), mode
        spent = {one["phase"]: one["run_seconds"] > 0 for one in summary["phases"]}
        assert spent["forward"] is (mode not in ("data", "empty"))
        assert spent["backward"] is (mode not in ("data", "forward"))
    # Each mode does all that the one before does, so the differences add up to the whole step.
    whole, parts = found["train"], result["marginals"]
    ms = 1e3 * whole["wall_s"] / whole["steps"]
    assert sum(part["marginal_ms"] for part in parts) == pytest.approx(ms)
    assert 0 < sum(part["exposed_ms"] for part in parts) < ms
    assert [path for path in tmp_path.iterdir() if path != file] == []


@pytest.mark.slow
def test_from_any_stop_it_goes_on_to_the_same_weights(tmp_path, training):
    """Ctrl-C here, and then a process that is killed."""
    # With a constant rate it does not matter how many epochs were planned.
    given = [*training.SMALL, *training.HETERO, "schedule=constant", "trainer.ema=0.9"]
    given.append("data.samples_per_epoch=70")
    path, whole = tmp_path / "run", tmp_path / "whole"
    long = ("trainer.epochs=9999", "trainer.checkpoint_every_steps=2", f"directory={path}")

    def interrupt() -> None:
        training.wait_for_step(None, path, random.Random(1).randint(2, 12))
        os.kill(os.getpid(), signal.SIGINT)

    watch = threading.Thread(target=interrupt)
    watch.start()
    stopped = typed("train", *given, *long)
    watch.join()
    assert stopped.exit_code == 130
    assert str(path) in stopped.output
    record = read_run(path)
    assert record.status is Status.interrupted
    process = training.start(tmp_path, "train", "--resume", str(path))
    training.wait_for_step(process, path, record.last.step + 3)
    os.killpg(process.pid, signal.SIGKILL)
    training.end(process, -signal.SIGKILL)
    assert read_run(path).status is Status.running
    epochs = f"trainer.epochs={training.position_of(path).epoch + 2}"
    typed("train", "--resume", path, epochs)
    typed("train", *given, epochs, f"directory={whole}")
    assert training.equal(training.state_of(path), training.state_of(whole))
    assert training.rows_of(path) == training.rows_of(whole)
    statuses = [attempt.status for attempt in read_run(path).attempts]
    assert statuses == ["interrupted", "interrupted", "finished"]
