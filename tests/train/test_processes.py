"""Processes: devices, signals, who starts them, what they exchange, and which died first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from deltacell.errors import InputError
from deltacell.train import processes
from deltacell.train.config import Config, TrainerConfig
from deltacell.train.processes import (
    SAVE,
    STOPPING,
    Agreement,
    GradientSum,
    StopSignals,
    _described,
    _first_failure,
    _Watch,
    accelerator_of,
    cores,
    exit_code,
    from_first_rank,
    is_launched,
    make_fabric,
    needs_launch,
)

STARTED = ("TORCHELASTIC_RUN_ID", "RANK", "SLURM_PROCID", "SLURM_NTASKS", "DELTACELL_LAUNCHED")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*STARTED, "OMP_NUM_THREADS", "DELTACELL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


class TestSignals:
    @pytest.mark.parametrize("number", STOPPING)
    def test_a_signal_is_noted_and_the_handler_before_comes_back(self, number: int) -> None:
        before = signal.getsignal(number)
        with StopSignals() as signals:
            assert signals.received is None
            os.kill(os.getpid(), number)
            assert signals.received == number > SAVE
        assert signal.getsignal(number) == before
        assert exit_code(number) == 128 + number

    def test_only_the_second_interrupt_is_at_once(self) -> None:
        with StopSignals() as signals:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == signal.SIGINT

    def test_a_thread_that_may_set_no_handlers_does_not(self) -> None:
        found: list[int | None] = []

        def open_it() -> None:
            with StopSignals() as signals:
                found.append(signals.received)

        thread = threading.Thread(target=open_it)
        thread.start()
        thread.join()
        assert found == [None]


@pytest.mark.parametrize(
    ("environment", "asked", "expected"),
    [
        ({}, None, 6),
        ({}, 3, 3),
        ({"OMP_NUM_THREADS": "2"}, None, 2),
        ({"OMP_NUM_THREADS": "2"}, 3, 3),
        ({"OMP_NUM_THREADS": "2,1"}, None, 6),
        ({"OMP_NUM_THREADS": "0"}, None, 6),
        # What torchrun sets is no wish of the user's.
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, None, 6),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "DELTACELL_LAUNCHED": "1"}, None, 1),
    ],
)
def test_threads_are_the_configs_or_the_environments_or_all_cores(
    alone: pytest.MonkeyPatch, environment: dict[str, str], asked: int | None, expected: int
) -> None:
    for name, value in {**environment, "WORLD_SIZE": "1"}.items():
        alone.setenv(name, value)
    given: list[int] = []
    alone.setattr(torch, "set_num_threads", given.append)
    alone.setattr(processes, "cores", lambda: 6)
    alone.setattr(lightning.Fabric, "launch", lambda self: None)
    make_fabric(Config(trainer=TrainerConfig(threads=asked, accelerator="cpu")))
    assert given == [expected]


def test_devices_and_processes_have_to_be_there(alone: pytest.MonkeyPatch) -> None:
    alone.setattr(torch.cuda, "is_available", lambda: False)
    there = cores()
    assert accelerator_of(TrainerConfig(devices=there)) == "cpu"
    for config in (TrainerConfig(devices=there + 1), TrainerConfig(accelerator="cuda")):
        with pytest.raises(InputError) as caught:
            accelerator_of(config)
        assert caught.value.code == "too-few-devices"
    alone.setenv("TORCHELASTIC_RUN_ID", "x")
    alone.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError) as caught:
        make_fabric(Config())
    assert caught.value.code == "wrong-number-of-processes"


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, True),
        # An interactive allocation of one task is not a rank of several.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "4"}, False),
    ],
)
def test_processes_are_started_if_nobody_has(
    alone: pytest.MonkeyPatch, environment: dict[str, str], rank: bool
) -> None:
    for name, value in environment.items():
        alone.setenv(name, value)
    assert needs_launch(TrainerConfig(devices=2)) is not rank
    assert not needs_launch(TrainerConfig(devices=1))
    assert not needs_launch(TrainerConfig(devices=2, nodes=2))
    assert not is_launched()


def failure(exitcode: int, message: Any = "", pid: int = 7, at: int = 0) -> ProcessFailure:
    found = ProcessFailure(local_rank=1, pid=pid, exitcode=exitcode, error_file="<N/A>")
    found.message, found.timestamp = message, at
    return found


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
    assert "SIGKILL" in _described(failure(-9))
    told = failure(1, {"message": "short", "extraInfo": {"py_callstack": TRACE}})
    assert _described(told).splitlines()[1:] == [
        "/runs/a: the loss is nan at step 3",
        "  Try a smaller rate.",
    ]
    plain = "Traceback (most recent call last):\n  File 'x'\nZeroDivisionError: by zero"
    other = failure(1, {"message": "short", "extraInfo": {"py_callstack": plain}})
    assert _described(other).endswith(plain)
    alone.setenv("DELTACELL_DEBUG", "1")
    assert "Traceback" in _described(told)


DIES = (
    "import os, sys, time; time.sleep(float(sys.argv[1])); os.kill(os.getpid(), int(sys.argv[2]))"
)


def child(after: float, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", DIES, str(after), str(number)])


def waited_for(seen: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not seen() and time.monotonic() < until:
        time.sleep(0.01)
    assert seen()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one look without waiting")
def test_the_first_to_die_is_seen_and_one_that_is_stopped_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _Watch() as watch:
        later, first = child(2, signal.SIGKILL), child(0, signal.SIGKILL)
        waited_for(lambda: watch.first)
        assert watch.first == first.pid
        assert (first.wait(), later.wait()) == (-9, -9)
    failures = {0: failure(1, pid=later.pid, at=1), 1: failure(-9, pid=first.pid, at=2)}
    assert _first_failure(ChildFailedError("x", failures), watch.first)[0] == 1
    monkeypatch.setattr(processes, "STOPPED_FOR", 0.1)
    with _Watch() as watch:
        still = child(0, signal.SIGSTOP)
        waited_for(lambda: watch.first)
        assert (watch.first, still.wait()) == (still.pid, -9)
        assert "SIGSTOP" in watch.stalled


def test_alone_everything_is_at_once() -> None:
    agreement = Agreement()
    assert [agreement.reached(mine) for mine in (0, 15, 0)] == [0, 15, 0]
    agreement.settle()
    assert from_first_rank({"a": [1, None]}, torch.device("cpu")) == {"a": [1, None]}
    module = nn.Linear(2, 1)
    gradients = GradientSum(module)
    gradients.begin()
    module(torch.ones(3, 2)).sum().backward()
    assert gradients.exposed() == 0
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[3, 3]]


TWO = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deltacell.train.loop import Meter
from deltacell.train.processes import Agreement, GradientSum, from_first_rank, world_size

dist.init_process_group("gloo")
rank, cpu = dist.get_rank(), torch.device("cpu")
assert world_size() == 2

# Rank 0's value, whatever its length.
given = {"name": "Δ" * 50, "n": 1} if rank == 0 else None
assert from_first_rank(given, cpu) == {"name": "Δ" * 50, "n": 1}

# All learn of a number one step after any of them gave it.
agreement = Agreement()
mine = [0, 15 if rank == 1 else 0, 2 if rank == 0 else 0, 0, 0]
answers = []
for number in mine:
    answers.append(agreement.reached(number))
    agreement.arrive()
assert answers == [0, 0, 15, 2, 0]
agreement.settle()
agreement.settle()

# Gradients are summed, not averaged.
module = torch.nn.Linear(1, 1, bias=False)
parallel = DistributedDataParallel(module)
gradients = GradientSum(parallel)
for value in (1.0, 2.0):
    module.zero_grad()
    gradients.begin()
    parallel(torch.tensor([[value + rank]])).sum().backward()
    assert module.weight.grad.item() == 2 * value + 1, module.weight.grad
    assert 0 < gradients.exposed() < 60

# Means are of all ranks, and so is the state that a run continues with.
meter = Meter("cpu")
meter.add({"loss": torch.tensor(1.0 + rank), "part": torch.tensor(2.0)}, 4)
state = meter.state_dict()
assert state["sums"]["loss"].item() == 12 and state["genotypes"] == 4, state
assert meter.means() == {"loss": 3.0, "part": 4.0}
again = Meter("cpu")
again.load_state_dict(state, first=rank == 0)
again.add({"loss": torch.tensor(0.5), "part": torch.tensor(0.0)}, 4)
assert again.means() == {"loss": 2.0, "part": 2.0}
# Not printed: what two ranks print at once is mixed.
open(f"fine-{rank}", "w").close()
dist.destroy_process_group()
# Native thread pools now and then abort while the interpreter ends, after all was done.
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "two.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("fine-*")} == {"fine-0", "fine-1"}
