"""Running the program as a user does."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from deltacell.cli import main

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
        folder: Path, *arguments: str | Path, code: int = 0, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        words = list(map(str, arguments))
        done = _in_a_process(folder, words) if fresh else _here(folder, words)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

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
    """The helpers of ``training.py``, which is no test and so is not imported by pytest."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("training.py"))))


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test(training: SimpleNamespace) -> Iterator[None]:
    """A test that fails half-way must not leave a training that goes on for ever."""
    yield
    training.end_all()
