"""Running the program as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def deltacell(tmp_path: Path) -> Run:
    """The command `deltacell`, in an empty folder, without colours."""

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "deltacell", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def training() -> ModuleType:
    """The helpers of ``training.py``, which is no test and so is not imported by pytest."""
    spec = spec_from_file_location("training", Path(__file__).with_name("training.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
