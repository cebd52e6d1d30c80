"""A disk that fills up and a process that is killed, for real and in processes of their own."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from deltacell.cell import Cell

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def old():
    return Cell.synthetic("demo", seed=0)


@pytest.fixture(scope="module")
def new():
    return Cell.synthetic("demo", seed=1)


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


KILLED_AT = """
import os, signal, sys
from deltacell import store
from deltacell.cell import Cell
cell = Cell.synthetic("demo", seed=1)
calls = 0

def deadly(function, at, after):
    def wrapped(*arguments, **options):
        global calls
        calls += 1
        if calls == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapped

where, at, after = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "after"
setattr(store, where, deadly(getattr(store, where), at, after))
cell.save(sys.argv[1], overwrite=True)
"""


@pytest.mark.parametrize(
    ("where", "at", "after", "survivor"),
    [
        ("sha256_of_file", 1, "before", "old"),
        ("sha256_of_file", 9, "after", "old"),
        ("write_manifest", 1, "before", "old"),
        ("_move_into_place", 1, "before", "old"),
        ("_exchanged", 1, "before", "old"),
        ("_exchanged", 1, "after", "new"),
    ],
)
def test_a_cell_is_whole_wherever_the_writer_was_killed(
    tmp_path, old, new, where, at, after, survivor
):
    old.save(tmp_path / "cell")
    done = run(KILLED_AT, tmp_path / "cell", where, at, after)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert Cell.load(tmp_path / "cell").equals({"old": old, "new": new}[survivor])
    # What a killed process left beside it is not in the way of the next one.
    new.save(tmp_path / "cell", overwrite=True)
    assert Cell.load(tmp_path / "cell").equals(new)


ENDLESS = """
import sys
from deltacell.cell import Cell
cells = [Cell.synthetic("demo", seed=s) for s in (0, 1)]
print("ready", flush=True)
while True:
    for cell in cells:
        cell.save(sys.argv[1], overwrite=True)
"""


def test_a_cell_is_whole_whenever_the_writer_was_killed(tmp_path, old, new):
    whole = {old.checksum, new.checksum}
    old.save(tmp_path / "cell")
    pause = random.Random(0)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(tmp_path / "cell")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(pause.uniform(0.01, 0.3))
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        assert Cell.load(tmp_path / "cell").checksum in whole
