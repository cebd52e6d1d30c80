"""Jobs of `deltacell slurm train`, run by something that does to them what Slurm does."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.profile.record import RunRecord, Status, read_run

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
def cluster(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(SRUN)
    (folder / "scontrol").write_text('#!/bin/bash\necho "$@" >> scontrol.txt\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    yield tmp_path
    # A test that failed may have left a job behind.
    for group in JOBS:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    JOBS.clear()


JOBS: list[int] = []


def submit(
    cluster: Path, text: str, tasks: int = 1, number: int = 77, **environment: str
) -> subprocess.Popen[str]:
    (cluster / "job.sbatch").write_text(text)
    path = f"{cluster / 'bin'}:{os.environ['PATH']}"
    known = {"PATH": path, "TASKS": str(tasks), "OMP_NUM_THREADS": "1"}
    known["SLURM_JOB_ID"] = str(number)
    job = subprocess.Popen(
        ["bash", "job.sbatch"],
        start_new_session=True,
        cwd=cluster,
        env={**os.environ, **known, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    JOBS.append(job.pid)
    return job


def end(job: subprocess.Popen[str], code: int) -> None:
    said, _ = job.communicate(timeout=240)
    assert job.returncode == code, said


def wait_for(file: Path, job: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)


def record(cluster: Path, name: str = "demo-77") -> RunRecord:
    return read_run(cluster / "runs" / name)


SHORT = ("experiment=demo", "data.synthetic_genotypes=600", "trainer.figures_every=0")


@pytest.mark.slow
def test_a_job_saves_at_its_limit_and_goes_on_when_it_is_back(
    deltacell: Any, cluster: Path
) -> None:
    text = deltacell("slurm", "train", *SHORT, "trainer.epochs=60", "--requeue").stdout
    job = submit(cluster, text)
    wait_for(cluster / "runs" / "demo-77" / "metrics.csv", job)
    job.send_signal(signal.SIGUSR1)
    end(job, 128 + signal.SIGUSR1)
    assert (cluster / "scontrol.txt").read_text() == "requeue 77\n"
    before = record(cluster)
    assert before.status is Status.interrupted
    end(submit(cluster, text), 0)
    after = record(cluster)
    assert after.status is Status.finished
    assert [one.from_step for one in after.attempts] == [0, before.last.step]  # type: ignore[union-attr]
    assert before.last.step > 0  # type: ignore[union-attr]
    assert after.metrics()["epoch"].to_list() == list(range(1, 61))


@pytest.mark.slow
def test_a_job_that_is_pre_empted_saves_and_waits_for_slurm(deltacell: Any, cluster: Path) -> None:
    text = deltacell("slurm", "train", *SHORT, "trainer.epochs=500", "--requeue").stdout
    job = submit(cluster, text)
    wait_for(cluster / "runs" / "demo-77" / "metrics.csv", job)
    # Slurm tells the tasks and the shell.
    pid = int((cluster / "runs" / "demo-77" / ".lock").read_text())
    os.kill(pid, signal.SIGTERM)
    job.send_signal(signal.SIGTERM)
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert record(cluster).status is Status.interrupted
    time.sleep(1)
    assert job.poll() is None
    # The first of these may come before it waits; Slurm would kill it at last.
    while job.poll() is None:
        assert time.monotonic() < until
        job.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    end(job, 128 + signal.SIGTERM)
    assert not (cluster / "scontrol.txt").exists()


@pytest.mark.slow
def test_an_array_trains_one_seed_a_job_on_two_ranks(deltacell: Any, cluster: Path) -> None:
    words = (*SHORT, "trainer.epochs=2", "trainer.devices=2", "--seeds", "0-1")
    text = deltacell("slurm", "train", *words).stdout
    array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1"}
    # Jobs of one moment have numbers, and so ports, of their own.
    end(submit(cluster, text, tasks=2, number=71, **array), 0)
    found = record(cluster, "demo-70-seed1")
    assert (found.status, found.seed, found.world_size) == (Status.finished, 1, 2)


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(deltacell: Any, cluster: Path) -> None:
    text = deltacell("slurm", "train", *SHORT, "trainer.devices=2").stdout
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        job = submit(cluster, text, tasks=2, MASTER_PORT=str(port))
        said, _ = job.communicate(timeout=240)
    assert job.returncode != 0
    assert f"the ranks cannot meet at 127.0.0.1:{port}" in said
    assert "Set MASTER_PORT to a free port" in said
    assert "fault of deltacell" not in said


@pytest.mark.slow
def test_a_failure_is_the_code_of_the_job(deltacell: Any, cluster: Path) -> None:
    text = deltacell("slurm", "train", "data.folder=nowhere", "--requeue").stdout
    job = submit(cluster, text)
    said, _ = job.communicate(timeout=240)
    assert job.returncode == 2
    assert "nowhere" in said
    assert not (cluster / "scontrol.txt").exists()


def test_a_mistake_is_found_before_there_is_a_job(deltacell: Any) -> None:
    wrong = deltacell("slurm", "train", "trainer.epohcs=3", code=2)
    assert "trainer.epochs" in wrong.stderr
    assert wrong.stdout == ""
    wrong = deltacell("slurm", "train", "experiment=demo", "--time", "soon", code=2)
    assert "--time is 'soon'; expected something such as 24:00:00" in wrong.stderr


def test_the_commands_of_the_page_write_scripts() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("deltacell slurm")]
    assert len(lines) == 3
    for line in lines:
        written = CliRunner().invoke(app, shlex.split(line.partition(" > ")[0])[1:])
        assert written.exit_code == 0, written.output
        checked = subprocess.run(["bash", "-n"], input=written.stdout, text=True, check=False)
        assert checked.returncode == 0
