"""Running the program as a user does."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deltacell.base.errors import InputError
from deltacell.cli import main
from deltacell.cli.app import app
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.run_directory import metrics_of

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def deltacell(tmp_path: Path, typed: Run) -> Run:
    """The command `deltacell`, in an empty folder."""
    return partial(typed, tmp_path)


@pytest.fixture(scope="session")
def typed() -> Run:
    """The command `deltacell` in a folder, without colours.

    It runs in this process unless asked for a fresh one: to load PyTorch takes seconds.
    """

    def run(
        folder: Path,
        *arguments: str | Path,
        code: int = 0,
        fresh: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        words = list(map(str, arguments))
        done = _in_a_process(folder, words) if fresh else _here(folder, words)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def mistake(tmp_path: Path, refused: Callable[..., InputError]) -> Callable[..., InputError]:
    """The error that `deltacell` ends with in an empty folder, whose code is checked."""

    def run(code: str, *arguments: str | Path) -> InputError:
        with contextlib.chdir(tmp_path):
            return refused(code, app, list(map(str, arguments)), standalone_mode=False)

    return run


def _in_a_process(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deltacell", *words],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _here(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    code = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as said,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["deltacell", *words])
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(words, code, said.getvalue(), errors.getvalue())


@pytest.fixture(scope="session")
def training() -> SimpleNamespace:
    """What is below: real processes that train, to be signalled and killed."""
    return SimpleNamespace(**globals())


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    """A test that fails half-way must not leave a training that goes on for ever."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


SMALL = (
    *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=16", "model.hidden=8"),
    *("trainer.threads=1", "trainer.figures_every=0", "trainer.progress=false"),
    *("loggers.tensorboard=false", "model.relations=[string_fusion,string_database]"),
)
HETERO = (
    *("model=hetero_cell", "model.hidden=8", "model.relations=[physical,string_database]"),
    *("model.layers=2", "model.local_heads=2", "model.dropout=0.3", "loss=log_cosh"),
)
PATIENCE = 240
"""Seconds that a process may take to do what is waited for, on a machine that is busy."""


STARTED: list[subprocess.Popen[str]] = []
"""What was started and may still run."""


def start(folder: Path, *words: str, first: str = "") -> subprocess.Popen[str]:
    """Start the program; every process of it first runs what is given."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(first)
    # The tests may find the program by this too.
    found = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    return start_program(folder, [sys.executable, "-m", "deltacell", *words], PYTHONPATH=found)


def start_program(folder: Path, command: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a program in a session of its own, what it says in one pipe."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def end(process: subprocess.Popen[str], code: int) -> str:
    """Wait for a process and return what it said."""
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, f"exit {process.returncode}\n{said}"
    return said


def wait_for_step(process: subprocess.Popen[str] | None, path: Path, step: int) -> None:
    """Wait until a run has saved a checkpoint of a step or later."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        files = path.glob("checkpoints/step-*.ckpt")
        if any(int(file.stem.split("-")[1]) >= step for file in files):
            return
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}:\n{process.communicate()[0]}")
        time.sleep(0.02)
    raise AssertionError("it did not get that far")


def state_of(path: Path) -> dict[str, Any]:
    """Return the last state of a run, without the time it took and the config with its place."""
    state = Checkpoints(path / "checkpoints").load("last")
    state["position"].pop("seconds")
    del state["run"]["config"], state["rows"]
    return state


def position_of(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**state_of(path)["position"])


def rows_of(path: Path) -> list[dict[str, float | None]]:
    """Return the metrics of a run, without the time they took."""
    return [
        {name: value for name, value in row.items() if name not in ("seconds", "samples_per_s")}
        for row in metrics_of(path)
    ]


def equal(a: Any, b: Any) -> bool:
    """Return whether two states are the same bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
