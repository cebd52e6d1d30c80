"""Real processes that train, to be signalled and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from deltacell.train.checkpoints import Checkpoints
from deltacell.train.run_directory import metrics_of

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


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return start_program(folder, [sys.executable, "-m", "deltacell", *words], **environment)


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


def end_all() -> None:
    """Kill what is still running of all that was started, with all its own processes."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def end(process: subprocess.Popen[str], code: int) -> str:
    """Wait for a process and return what it said."""
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, f"exit {process.returncode}\n{said}"
    return said


def wait_for_step(process: subprocess.Popen[str], path: Path, step: int) -> None:
    """Wait until a run has saved a checkpoint of a step or later."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        files = path.glob("checkpoints/step-*.ckpt")
        if any(int(file.stem.split("-")[1]) >= step for file in files):
            return
        if process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}:\n{process.communicate()[0]}")
        time.sleep(0.02)
    process.kill()
    raise AssertionError("it did not get that far")


def state_of(path: Path) -> dict[str, Any]:
    """Return the last state of a run, without the time it took and the config with its place."""
    state = Checkpoints(path / "checkpoints").load("last")
    state["position"].pop("seconds")
    del state["run"]["config"], state["rows"]
    return state


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
