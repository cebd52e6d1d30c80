"""Several processes: started, stopped and brought down together."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deltacell.profile.phase_rows import read_phases
from deltacell.profile.record import Status, read_run

Run = Callable[..., Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores here"
    ),
]
LONG = ("trainer.epochs=100000", "trainer.checkpoint_every_steps=3", "trainer.devices=2")
BROUGHT_DOWN = 60
"""Seconds in which a rank that dies brings the others down."""


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the processes of a launcher by rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = {}
    for child in map(int, children):
        for line in Path(f"/proc/{child}/environ").read_text().split("\0"):
            if line.startswith("RANK="):
                found[int(line.removeprefix("RANK="))] = child
    return found


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_is_killed_brings_the_others_down(
    deltacell: Run, tmp_path: Path, training: ModuleType
) -> None:
    # The first rank is the one that writes the record.
    victim = 0
    path = tmp_path / "run"
    process = training.start(tmp_path, "train", *training.SMALL, *LONG, f"directory={path}")
    training.wait_for_step(process, path, 3)
    ranks = ranks_of(process.pid)
    assert set(ranks) == {0, 1}
    os.kill(ranks[victim], signal.SIGKILL)
    began = time.monotonic()
    said = training.end(process, 2)
    assert time.monotonic() - began < BROUGHT_DOWN
    assert f"rank {victim} was killed by SIGKILL; the other ranks were stopped" in said
    assert "Traceback" not in said
    assert not any(is_there(rank) for rank in ranks.values())
    # What was saved before is there to go on from, in any number of processes.
    record = read_run(path)
    assert record.status is Status.failed
    assert f"rank {victim}" in (record.error or "")
    step = training.state_of(path)["position"]["step"]
    epochs = f"trainer.epochs={step // 5 + 2}"
    deltacell("train", "--resume", path, epochs, "trainer.devices=1")
    assert read_run(path).status is Status.finished


def test_ranks_whose_launcher_is_killed_save_and_end(tmp_path: Path, training: ModuleType) -> None:
    path = tmp_path / "run"
    process = training.start(tmp_path, "train", *training.SMALL, *LONG, f"directory={path}")
    training.wait_for_step(process, path, 3)
    ranks = ranks_of(process.pid)
    process.kill()
    process.wait()
    until = time.monotonic() + BROUGHT_DOWN
    while any(is_there(rank) for rank in ranks.values()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(is_there(rank) for rank in ranks.values())
    assert read_run(path).status is Status.interrupted


BROKEN = """
import os
if os.environ.get("RANK") == "1":
    import deltacell.train.task as task
    step = task.Task.training_step
    def training_step(self, prepared):
        if len(STEPS) == 7:
            raise ZeroDivisionError('only rank 1')
        STEPS.append(1)
        return step(self, prepared)
    STEPS = []
    task.Task.training_step = training_step
"""


def test_an_error_of_one_rank_is_told_with_the_rank_and_its_traceback(
    tmp_path: Path, training: ModuleType
) -> None:
    # Python runs this at the start of every process, and it breaks one of them.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN)
    path = tmp_path / "run"
    # The tests may find the program by this too.
    found = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    words = ["train", *training.SMALL, *LONG, f"directory={path}"]
    said = training.end(training.start(tmp_path, *words, PYTHONPATH=found), 2)
    assert "error: rank 1 failed, and the other ranks were stopped" in said
    assert "ZeroDivisionError: only rank 1" in said
    record = read_run(path)
    assert record.status is Status.failed
    assert "ZeroDivisionError" in (record.error or "")
    assert record.last is not None
    assert record.last.step == 6


TO_BE_STOPPED = ("trainer.devices=2", "trainer.epochs=25", "data.batch_size=8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, training: ModuleType) -> Path:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    given = [*training.SMALL, *TO_BE_STOPPED, f"directory={folder / 'run'}"]
    training.end(training.start(folder, "train", *given), 0)
    return folder / "run"


@pytest.mark.parametrize("to", ["terminal", "rank"])
def test_a_signal_saves_in_all_ranks_and_going_on_is_as_if_nothing_had_been(
    tmp_path: Path, training: ModuleType, whole: Path, to: str
) -> None:
    path = tmp_path / "run"
    given = [*training.SMALL, *TO_BE_STOPPED, f"directory={path}"]
    process = training.start(tmp_path, "train", *given)
    training.wait_for_step(process, path, 9)
    if to == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
    said = training.end(process, 130 if to == "terminal" else 143)
    assert "and saved" in said
    assert "Traceback" not in said
    record = read_run(path)
    assert record.status is Status.interrupted
    assert record.last is not None
    assert record.last.step < 225
    training.end(training.start(tmp_path, "train", "--resume", str(path)), 0)
    assert training.equal(training.state_of(path), training.state_of(whole))
    assert training.rows_of(path) == training.rows_of(whole)


def test_torchrun_starts_it_too(tmp_path: Path, training: ModuleType) -> None:
    path = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    given = [*training.SMALL, "trainer.epochs=2", f"directory={path}"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "deltacell", "train", *given]
    said = training.end(training.start_program(tmp_path, [*command, "trainer.devices=2"]), 0)
    assert said.count("Finished:") == 1
    record = read_run(path)
    assert (record.status, record.world_size) == (Status.finished, 2)
    rows = read_phases(path / "phases")
    assert rows["rank"].unique().sort().to_list() == [0, 1]
    assert rows["samples"].sum() == 2 * 74


def test_own_configs_modes_and_captures_reach_every_rank(
    tmp_path: Path, training: ModuleType
) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    own = "# @package _global_\ndefaults:\n  - demo\n  - _self_\nseed: 11\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(own)
    path = tmp_path / "run"
    given = ["experiment=mine", *training.SMALL[1:], "trainer.devices=2", f"directory={path}"]
    given += ["mode=forward", "mode_steps=9", "--config-dir", str(tmp_path / "conf")]
    given += ["profiler.trace=true", "profiler.window=[1,1,2,1]"]
    said = training.end(training.start(tmp_path, "train", *given), 0)
    assert "forward" in said
    assert read_run(path).seed == 11
    assert sorted(file.name for file in (path / "traces").iterdir()) == [
        "trace-rank0-window0.json.gz",
        "trace-rank1-window0.json.gz",
    ]


def test_what_is_wrong_is_said_once(tmp_path: Path, training: ModuleType) -> None:
    given = ["trainer.devices=2", "data.relations=[telepathic]", f"directory={tmp_path / 'run'}"]
    said = training.end(training.start(tmp_path, "train", *training.SMALL, *given), 2)
    assert said.count("telepathic") == 1
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
