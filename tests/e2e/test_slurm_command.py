"""Jobs of `deltacell slurm train`, run by something that does to them what Slurm does."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.profile.record import Status, read_run

SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time

words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
n = int(os.environ["TASKS"])
common = dict(SLURM_NTASKS=str(n), SLURM_NTASKS_PER_NODE=str(n), SLURM_NNODES="1",
              SLURM_NODEID="0", SLURM_NODELIST="127.0.0.1", SLURM_JOB_NAME="demo")
tasks = [
    subprocess.Popen(words, env=dict(os.environ, **common, SLURM_PROCID=str(i),
                                     SLURM_LOCALID=str(i)))
    for i in range(n)
]
open("tasks.txt", "w").write(" ".join(str(task.pid) for task in tasks))
def all_of_them(number):
    for task in tasks:
        if task.poll() is None:
            task.send_signal(number)
# As srun does: the first is handed on, and the second kills.
signal.signal(signal.SIGUSR1, lambda number, frame: all_of_them(number))
signal.signal(signal.SIGTERM, lambda number, frame: all_of_them(signal.SIGKILL))
while any(task.poll() is None for task in tasks):
    if any(task.returncode for task in tasks) and "--kill-on-bad-exit=1" in sys.argv:
        all_of_them(signal.SIGKILL)
    time.sleep(0.01)
codes = [task.returncode for task in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""


@pytest.fixture
def submit(tmp_path, training):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(SRUN)
    (folder / "scontrol").write_text('#!/bin/bash\necho "$@" >> scontrol.txt\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    # Jobs of one moment have numbers, and so ports, of their own.
    slurm = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "71"}
    slurm |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1"}

    def start(n_tasks=2):
        about = {**slurm, "TASKS": str(n_tasks)}
        return training.start_program(tmp_path, ["bash", "job.sbatch"], **about)

    return start


def wait_for(done, job=None):
    until = time.monotonic() + 120
    while not done():
        assert job is None or job.poll() is None, job.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores here")
def test_a_job_of_an_array_saves_when_it_is_stopped_and_goes_on_when_it_is_back(
    deltacell,
    tmp_path,
    submit,
    training,
):
    words = (*training.SMALL, "trainer.epochs=100000", "trainer.devices=2")
    text = deltacell("slurm", "train", *words, "--seeds", "0-1", "--requeue").stdout
    (tmp_path / "job.sbatch").write_text(text)
    run, job = tmp_path / "runs" / "demo-70-seed1", submit()
    wait_for((run / "metrics.csv").exists, job)
    # When it pre-empts a job, Slurm tells the tasks and the shell; here only the last task.
    pids = [int(pid) for pid in (tmp_path / "tasks.txt").read_text().split()]
    os.kill(pids[-1], signal.SIGTERM)
    job.send_signal(signal.SIGTERM)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    before = read_run(run)
    assert (before.status, before.seed, before.world_size) == (Status.interrupted, 1, 2)
    time.sleep(1)
    assert job.poll() is None

    def is_over():
        # The first of these may come before it waits; Slurm would kill it at last.
        job.send_signal(signal.SIGTERM)
        return job.poll() is not None

    wait_for(is_over)
    training.end(job, 128 + signal.SIGTERM)
    assert not (tmp_path / "scontrol.txt").exists()
    # Before the time limit it tells the shell alone.
    job = submit()
    wait_for(lambda: read_run(run).last.step > before.last.step > 0, job)
    job.send_signal(signal.SIGUSR1)
    training.end(job, 128 + signal.SIGUSR1)
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 70_1\n"
    after = read_run(run)
    assert after.status is Status.interrupted
    assert [one.from_step for one in after.attempts] == [0, before.last.step]
    epochs = [row["epoch"] for row in training.rows_of(run)]
    assert epochs == list(range(1, len(epochs) + 1))


@pytest.mark.slow
def test_a_job_runs_to_its_end_and_exits_with_0(deltacell, tmp_path, submit, training):
    words = (*training.SMALL, "trainer.epochs=2")
    text = deltacell("slurm", "train", *words, "--requeue").stdout
    (tmp_path / "job.sbatch").write_text(text)
    said = training.end(submit(n_tasks=1), 0)
    (run,) = (tmp_path / "runs").iterdir()
    record = read_run(run)
    assert (record.status, record.last.epoch) == (Status.finished, 2)
    assert [row["epoch"] for row in training.rows_of(run)] == [1, 2]
    assert said.count("Finished:") == 1
    assert not (tmp_path / "scontrol.txt").exists()


def test_a_mistake_is_found_before_there_is_a_job(mistake, capsys):
    error = mistake("unknown-key", "slurm", "train", "trainer.epohcs=3")
    assert error.fields["key"] == "trainer.epohcs"
    mistake("not-for-slurm", "slurm", "train", "experiment=demo", "--time", "1 day")
    assert capsys.readouterr().out == ""


def test_the_commands_of_the_page_write_scripts(runs):
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("deltacell slurm")]
    assert len(lines) == 5
    for line in lines:
        line = line.replace("runs/first", str(runs["seed0"]))
        written = CliRunner().invoke(app, shlex.split(line.partition(" > ")[0])[1:])
        assert written.exit_code == 0, written.output
        checked = subprocess.run(["bash", "-n"], input=written.stdout, text=True, check=False)
        assert checked.returncode == 0
