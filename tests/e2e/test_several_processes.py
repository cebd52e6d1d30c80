"""Several processes: started, stopped and brought down together."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from deltacell.profile.phase_rows import read_phases
from deltacell.profile.record import Status, read_run

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


def test_a_rank_that_is_killed_brings_the_others_down(deltacell, tmp_path, training):
    path = tmp_path / "run"
    process = training.start(tmp_path, "train", *training.SMALL, *LONG, f"directory={path}")
    training.wait_for_step(process, path, 3)
    ranks = ranks_of(process.pid)
    assert set(ranks) == {0, 1}
    # The first rank is the one that writes the record.
    os.kill(ranks[0], signal.SIGKILL)
    began = time.monotonic()
    said = training.end(process, 2)
    assert time.monotonic() - began < BROUGHT_DOWN
    assert "rank 0 was killed by SIGKILL; the other ranks were stopped" in said
    assert "Traceback" not in said
    assert not any(is_there(rank) for rank in ranks.values())
    # What was saved before is there to go on from, in any number of processes.
    record = read_run(path)
    assert record.status is Status.failed
    assert "rank 0" in (record.error or "")
    step = training.state_of(path)["position"]["step"]
    epochs = f"trainer.epochs={step // 5 + 2}"
    deltacell("train", "--resume", path, epochs, "trainer.devices=1")
    assert read_run(path).status is Status.finished


BROKEN = """
import os
if os.environ.get("RANK") == "1":
    import deltacell.train.task as task
    forward = task.Task.forward
    def broken(self, prepared):
        if len(STEPS) == 7:
            raise ZeroDivisionError('only rank 1')
        STEPS.append(1)
        return forward(self, prepared)
    STEPS = []
    task.Task.forward = broken
"""


def test_an_error_of_one_rank_is_told_with_the_rank_and_its_traceback(tmp_path, training):
    # Python runs this at the start of every process, and it breaks one of them.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN)
    path = tmp_path / "run"
    # The tests may find the program by this too.
    found = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    words = ["train", *training.SMALL, *LONG, f"directory={path}"]
    said = training.end(training.start(tmp_path, *words, PYTHONPATH=found), 2)
    assert "error: rank 1 failed, and the other ranks were stopped" in said
    assert said.count("ZeroDivisionError: only rank 1") == 1
    record = read_run(path)
    assert record.status is Status.failed
    assert "ZeroDivisionError" in (record.error or "")
    assert record.last is not None
    assert record.last.step == 6


# One start of both ranks ends a run that was stopped, and trains another that never was.
TO_THE_END = """
import sys
from deltacell.cli.app import app
app(["train", "--resume", *sys.argv[1:3]], standalone_mode=False)
app(["train", *sys.argv[3:]], standalone_mode=False)
"""


def test_stopped_in_every_way_and_resumed_it_is_as_if_nothing_had_been(tmp_path, training):
    """Ctrl-C, a signal to one rank, and a launcher that is killed; in the end by torchrun."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    own = "# @package _global_\ndefaults:\n  - demo\n  - _self_\nseed: 11\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(own)
    path, whole = tmp_path / "run", tmp_path / "whole"
    # With a constant rate it does not matter how many epochs were planned.
    given = [*training.SMALL[1:], *LONG[1:], "schedule=constant", "data.batch_size=8"]
    trace = ["profiler.trace=true", "profiler.window=[1,1,2,1]"]
    words = ["experiment=mine", *given, *trace, LONG[0], "--config-dir", "conf"]
    words.append(f"directory={path}")
    step = 9
    for number, to, code in (
        (signal.SIGINT, "terminal", 130),
        (signal.SIGTERM, "rank", 143),
        (signal.SIGKILL, "launcher", -signal.SIGKILL),
    ):
        process = training.start(tmp_path, "train", *words)
        training.wait_for_step(process, path, step)
        ranks = ranks_of(process.pid)
        if to == "terminal":
            os.killpg(process.pid, number)
        else:
            os.kill(ranks[1] if to == "rank" else process.pid, number)
        said = training.end(process, code)
        assert "Traceback" not in said
        assert "and saved" in said or to == "launcher"
        until = time.monotonic() + BROUGHT_DOWN
        while any(is_there(rank) for rank in ranks.values()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(is_there(rank) for rank in ranks.values())
        record = read_run(path)
        assert record.status is Status.interrupted
        words, step = ["--resume", str(path)], record.last.step + 1
    # Own configs and captures reached every rank.
    assert record.seed == 11
    names = sorted(file.name for file in (path / "traces").iterdir())
    assert names == ["trace-rank0-window0.json.gz", "trace-rank1-window0.json.gz"]
    epochs = f"trainer.epochs={record.last.epoch + 2}"
    (tmp_path / "end.py").write_text(TO_THE_END)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "end.py", str(path), epochs]
    command += [training.SMALL[0], *given, epochs, "seed=11", f"directory={whole}"]
    said = training.end(training.start_program(tmp_path, command), 0)
    assert said.count("Finished:") == 2
    assert training.equal(training.state_of(path), training.state_of(whole))
    assert training.rows_of(path) == training.rows_of(whole)
    assert (read_run(whole).status, read_run(whole).world_size) == (Status.finished, 2)
    rows = read_phases(whole / "phases")
    assert rows["rank"].unique().sort().to_list() == [0, 1]
    assert rows["samples"].sum() == (record.last.epoch + 2) * 74
