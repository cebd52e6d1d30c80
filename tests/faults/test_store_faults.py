"""A disk that fills up, for real and in a process of its own; `deltacell bench faults` kills."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deltacell.cell import Cell

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def old():
    return Cell.synthetic("demo", seed=0)


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FULL = """
import resource, signal, sys
from deltacell.cell import Cell
from deltacell.errors import StoreError
cell = Cell.synthetic("demo", seed=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    cell.save(sys.argv[1], overwrite=True)
except StoreError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("limit", [0, 5_000, 12_000])
def test_a_disk_that_fills_up_half_way_leaves_nothing(tmp_path, limit):
    done = run(FULL, tmp_path / "deep" / "cell", limit)
    assert done.returncode == 3, done.stderr
    assert "the cell could not be written" in done.stdout
    assert "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_old_cell(tmp_path, old):
    old.save(tmp_path / "cell")
    done = run(FULL, tmp_path / "cell", 12_000)
    assert done.returncode == 3, done.stderr
    assert Cell.load(tmp_path / "cell").equals(old)
    assert [p.name for p in tmp_path.iterdir()] == ["cell"]
