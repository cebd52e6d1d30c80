"""Trainings that are stopped (SIGSTOP) in the middle of writing a checkpoint, and wake up again."""

import os
import signal
import time
from pathlib import Path

import pytest

from deltacell.profile.record import Status, read_run
from deltacell.train.run_directory import LOCK

pytestmark = pytest.mark.slow

STOPS_IN_ITS_THIRD_CHECKPOINT = """
import os, signal
fsync, flushed = os.fsync, []

def fsync_and_stop(handle):
    fsync(handle)
    name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
    if ".ckpt." in name:
        flushed.append(name)
        if len(flushed) == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

os.fsync = fsync_and_stop
"""


def wait_until_stopped(process, patience):
    """Wait until a process sleeps because of SIGSTOP."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()[0]
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        time.sleep(0.02)
    raise AssertionError("it was not stopped")


def files_of(folder):
    """Return the content of every file of a folder, and its inode, which a new file changes."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file()
    }


def temporary_files(folder):
    return list(folder.rglob(".*.tmp"))


@pytest.fixture
def stopped(tmp_path, training):
    """A training that sleeps between writing its third checkpoint and putting it in place."""
    words = [*training.SMALL, "trainer.epochs=3", f"directory={tmp_path / 'run'}"]
    words.append("trainer.checkpoint_every_steps=2")
    process = training.start(tmp_path, "train", *words, first=STOPS_IN_ITS_THIRD_CHECKPOINT)
    wait_until_stopped(process, training.PATIENCE)
    assert len(temporary_files(tmp_path / "run")) == 1
    return process


def test_a_sleeping_training_keeps_its_run_and_ends_as_if_it_had_not_slept(
    stopped, deltacell, mistake, tmp_path, training
):
    path = tmp_path / "run"
    assert mistake("locked", "train", "--resume", path).where == path
    os.kill(stopped.pid, signal.SIGCONT)
    training.end(stopped, 0)
    assert temporary_files(path) == []
    words = [*training.SMALL, "trainer.epochs=3", f"directory={tmp_path / 'whole'}"]
    deltacell("train", *words)
    assert training.equal(training.state_of(path), training.state_of(tmp_path / "whole"))


def test_a_training_that_lost_its_run_while_it_slept_changes_nothing_there(
    stopped, deltacell, tmp_path, training
):
    path = tmp_path / "run"
    (path / LOCK).unlink()
    deltacell("train", "--resume", path)
    # The owner of the run has removed what was half written.
    assert temporary_files(path) == []
    before = files_of(path)
    os.kill(stopped.pid, signal.SIGCONT)
    said = training.end(stopped, 2)
    assert "has lost the run" in said
    assert files_of(path) == before
    assert read_run(path).status is Status.finished
