"""A disk that fills up, for real and in a process of its own; `deltacell bench faults` kills."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deltacell.cell import Cell

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize(("limit", "there"), [(0, False), (5_000, False), (12_000, True)])
def test_a_disk_that_fills_up_half_way_leaves_what_was_there(tmp_path, limit, there):
    path, old = tmp_path / "deep" / "cell", Cell.synthetic("demo", seed=0)
    if there:
        old.save(path)
    command = [sys.executable, "-c", FULL, str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "the cell could not be written" in done.stdout
    assert "File too large" in done.stdout
    assert [entry.name for entry in tmp_path.rglob("*.tmp")] == []
    assert path.parent.exists() == there
    assert not there or Cell.load(path).equals(old)
