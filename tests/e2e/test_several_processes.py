"""Several processes: started, stopped and brought down together."""

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
        len(os.sched_getaffinity(0)) < 2,
        reason="two processes need two cores here",
    ),
]
BROUGHT_DOWN = 60
"""Seconds in which a rank that dies brings the others down."""

# One start of both ranks ends a run that was stopped, and trains another that never was.
TO_THE_END = """
import sys
from deltacell.cli.app import app
app(["train", "--resume", *sys.argv[1:3]], standalone_mode=False)
app(["train", *sys.argv[3:]], standalone_mode=False)
"""


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


def test_a_launcher_that_gets_sigterm_lets_its_ranks_save_and_exits_with_143(tmp_path, training):
    path = tmp_path / "run"
    words = [*training.SMALL, "trainer.epochs=100000", "trainer.devices=2", f"directory={path}"]
    process = training.start(tmp_path, "train", *words, "trainer.checkpoint_every_steps=3")
    training.wait_for_step(process, path, 1)
    os.kill(process.pid, signal.SIGTERM)
    training.end(process, 143)
    record = read_run(path)
    assert (record.status, record.world_size) == (Status.interrupted, 2)
    assert training.position_of(path).step == record.last.step >= 1


def test_stopped_in_every_way_it_is_as_if_nothing_had_been(deltacell, tmp_path, training):
    """Ctrl-C, a rank and a launcher that are killed; at last by torchrun."""
    for name, text in (
        ("conf/experiment/mine.yaml", "# @package _global_\ndefaults: [demo, _self_]\nseed: 11\n"),
        ("end.py", TO_THE_END),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    path, whole, said = tmp_path / "run", tmp_path / "whole", ""
    # With a constant rate it does not matter how many epochs were planned.
    given = [*training.SMALL[1:], "schedule=constant", "data.batch_size=8"]
    given += ["trainer.checkpoint_every_steps=3", "trainer.devices=2"]
    trace = ["profiler.trace=true", "profiler.window=[1,1,2,1]"]
    words = ["experiment=mine", *given, *trace, "trainer.epochs=100000", "--config-dir", "conf"]
    words.append(f"directory={path}")
    for number, to, code, status in (
        (signal.SIGINT, "terminal", 130, Status.interrupted),
        # The first rank is the one that writes the record.
        (signal.SIGKILL, "rank 0", 2, Status.failed),
        (signal.SIGKILL, "launcher", -signal.SIGKILL, Status.interrupted),
    ):
        process = training.start(tmp_path, "train", *words)
        training.wait_for_step(process, path, 1 + (training.position_of(path).step if said else 0))
        words = ["--resume", str(path)]
        ranks = ranks_of(process.pid)
        assert set(ranks) == {0, 1}
        if to == "terminal":
            os.killpg(process.pid, number)
        else:
            os.kill(ranks[0] if to == "rank 0" else process.pid, number)
        began = time.monotonic()
        said = training.end(process, code)
        assert "Traceback" not in said
        assert "and saved" in said or to != "terminal"
        killed = "rank 0 was killed by SIGKILL; the other ranks were stopped"
        assert (killed in said) is (to == "rank 0")
        while any(is_there(rank) for rank in ranks.values()):
            assert time.monotonic() - began < BROUGHT_DOWN
            time.sleep(0.1)
        record = read_run(path)
        assert record.status is status
        assert ("rank 0" in (record.error or "")) is (to == "rank 0")
    # Own configs and captures reached every rank.
    assert record.seed == 11
    names = sorted(file.name for file in (path / "traces").iterdir())
    assert names == ["trace-rank0-window0.json.gz", "trace-rank1-window0.json.gz"]
    last = training.position_of(path).epoch + 2
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "end.py", str(path), f"trainer.epochs={last}"]
    command += [training.SMALL[0], *given, f"trainer.epochs={last}", "seed=11"]
    said = training.end(training.start_program(tmp_path, [*command, f"directory={whole}"]), 0)
    assert said.count("Finished:") == 2
    assert training.equal(training.state_of(path), training.state_of(whole))
    assert training.rows_of(path) == training.rows_of(whole)
    assert (read_run(whole).status, read_run(whole).world_size) == (Status.finished, 2)
    rows = read_phases(whole / "phases")
    assert rows["rank"].unique().sort().to_list() == [0, 1]
    assert rows["samples"].sum() == last * 74
    # It may go on in any number of processes.
    deltacell("train", "--resume", path, f"trainer.epochs={last + 1}", "trainer.devices=1")
    assert read_run(path).status is Status.finished
