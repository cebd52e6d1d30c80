"""Who starts the processes, and what is said of one that died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from deltacell.errors import InputError
from deltacell.train.config import Config, TrainerConfig
from deltacell.train.processes import (
    _first,
    _said,
    _Watch,
    check_devices,
    cores,
    is_launched,
    is_rank,
    make_fabric,
    needs_launch,
)

STARTED = ("TORCHELASTIC_RUN_ID", "RANK", "SLURM_PROCID", "SLURM_NTASKS", "DELTACELL_LAUNCHED")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in STARTED:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, True),
        # An interactive allocation of one task is no rank of several.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "4"}, False),
    ],
)
def test_processes_are_started_where_nobody_has(
    alone: pytest.MonkeyPatch, environment: dict[str, str], rank: bool
) -> None:
    for name, value in environment.items():
        alone.setenv(name, value)
    assert is_rank() is rank
    assert needs_launch(TrainerConfig(devices=2)) is not rank
    assert not needs_launch(TrainerConfig(devices=1))
    assert not needs_launch(TrainerConfig(devices=2, nodes=2))
    assert not is_launched()


def failure(exitcode: int, message: Any = "") -> ProcessFailure:
    found = ProcessFailure(local_rank=1, pid=7, exitcode=exitcode, error_file="<N/A>")
    found.message = message
    return found


def test_a_kill_is_named() -> None:
    assert _said(failure(-9)) == "was killed by SIGKILL; the others were stopped"
    assert "SIGSEGV" in _said(failure(-11))


TRACE = """Traceback (most recent call last):
  File "loop.py", line 3, in run
deltacell.train.loop.NotFiniteError: the loss is nan

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "run.py", line 9, in go
deltacell.errors.InputError: /runs/a: the loss is nan at step 3
  Try a smaller rate.
"""


def test_an_error_for_users_is_its_sentence_and_another_its_traceback(
    alone: pytest.MonkeyPatch,
) -> None:
    alone.delenv("DELTACELL_DEBUG", raising=False)
    told = {"message": "short", "extraInfo": {"py_callstack": TRACE}}
    assert _said(failure(1, told)) == (
        "failed, and the others were stopped:\n"
        "/runs/a: the loss is nan at step 3\n  Try a smaller rate."
    )
    plain = "Traceback (most recent call last):\n  File 'x'\nZeroDivisionError: by zero\n"
    told = {"message": "short", "extraInfo": {"py_callstack": plain}}
    assert _said(failure(1, told)).endswith(plain.rstrip())
    alone.setenv("DELTACELL_DEBUG", "1")
    told = {"message": "short", "extraInfo": {"py_callstack": TRACE}}
    assert "Traceback" in _said(failure(1, told))


def test_more_devices_than_there_are() -> None:
    there = cores()
    assert there == len(os.sched_getaffinity(0))
    check_devices(TrainerConfig(devices=there), "cpu")
    with pytest.raises(
        InputError, match=rf"trainer.devices is {there + 1}, and this machine has {there} cores"
    ):
        check_devices(TrainerConfig(devices=there + 1), "cpu")


def test_torchrun_has_to_start_as_many_as_the_config_asks_for(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("TORCHELASTIC_RUN_ID", "x")
    alone.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match=r"there are 3 processes, and trainer\.devices x"):
        make_fabric(Config())


def test_accelerators(alone: pytest.MonkeyPatch) -> None:
    import torch

    from deltacell.train.processes import accelerator_of

    alone.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerator_of(TrainerConfig()) == "cpu"
    with pytest.raises(InputError, match="torch finds none here"):
        accelerator_of(TrainerConfig(accelerator="cuda"))
    with pytest.raises(InputError, match="no accelerator 'abacus'; there are auto, cpu, cuda"):
        accelerator_of(TrainerConfig(accelerator="abacus"))


DIES = (
    "import os, sys, time; time.sleep(float(sys.argv[1])); os.kill(os.getpid(), int(sys.argv[2]))"
)


def child(after: float, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DIES, str(after), str(number)])


def waited_for(seen: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not seen() and time.monotonic() < until:
        time.sleep(0.01)
    assert seen()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one look without waiting")
def test_the_first_to_die_is_seen_and_left_to_be_waited_for() -> None:
    with _Watch() as watch:
        later, first = child(3, signal.SIGKILL), child(0, signal.SIGKILL)
        waited_for(lambda: watch.first)
        assert watch.first == first.pid
        assert (first.wait(), later.wait()) == (-9, -9)
    failures = {0: failure(1), 1: failure(-9)}
    failures[0].pid, failures[1].pid = later.pid, first.pid
    failures[0].timestamp, failures[1].timestamp = 1, 2
    assert _first(ChildFailedError("x", failures), watch.first)[0] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one look without waiting")
def test_one_that_stands_still_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltacell.train.processes.STOPPED_FOR", 0.1)
    with _Watch() as watch:
        still = child(0, signal.SIGSTOP)
        waited_for(lambda: watch.first)
        assert (watch.first, still.wait()) == (still.pid, -9)
        assert "stood still" in watch.said
