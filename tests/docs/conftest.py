"""Running the commands of a page as a reader would, in a clean checkout."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the program, which answers from a process that has imported everything."""
    start = runpy.run_path(str(Path(__file__).with_name("warm.py")))["start"]
    folder = tmp_path_factory.mktemp("bin")
    server = start(folder)
    yield folder
    server.kill()
    server.wait()


@pytest.fixture
def run_lines(program: Path) -> Callable[..., str]:
    """Run lines of bash in a folder that becomes a checkout, and return what they print.

    Synthetic screens have so many genotypes, unless a line asks for another number.
    """

    def run(folder: Path, lines: Sequence[str], genotypes: int) -> str:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, found.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        # The environment is newer than what it is made from, so it is not made again.
        for name in ("pyproject.toml", "constraints.txt"):
            os.utime(folder / name, (0, 0))
        (folder / ".venv").mkdir()
        (folder / ".venv" / ".ready").touch()
        (folder / ".venv" / "bin").symlink_to(program)
        # This is one of the tests that these would run.
        these = r"^(make (?:test|check)|bash \.ci/run).*$"
        script = re.sub(these, "", "\n".join(lines), flags=re.MULTILINE)
        path = f"{program}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path, "TEST_GENOTYPES": str(genotypes)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
