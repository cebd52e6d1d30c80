"""Processes: devices, signals, who starts them, what they exchange, and which died first."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning_fabric
import pytest
import torch
import typer
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from deltacell.base.errors import InputError
from deltacell.cli import train as cli
from deltacell.train import devices
from deltacell.train.config import Config, TrainerConfig
from deltacell.train.devices import accelerator_of, cores, make_fabric
from deltacell.train.launch import (
    LAUNCHED,
    RankError,
    described,
    died,
    is_launched,
    kill_stalled,
    launch,
    leave_error,
    needs_launch,
)
from deltacell.train.signals import STOPPING, StopSignals


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    started = ("TORCHELASTIC_RUN_ID", "RANK", "SLURM_PROCID", "SLURM_NTASKS")
    for name in (*started, "OMP_NUM_THREADS", "DELTACELL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


class TestSignals:
    @pytest.mark.parametrize("number", STOPPING)
    def test_a_signal_is_noted_and_the_handler_before_comes_back(self, number):
        before = signal.getsignal(number)
        with StopSignals() as signals:
            assert signals.received is None
            os.kill(os.getpid(), number)
            assert signals.received == number > 0
        assert signal.getsignal(number) == before

    def test_only_the_second_interrupt_is_at_once_and_a_thread_sets_no_handler(self):
        with StopSignals() as signals:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == signal.SIGINT
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(StopSignals().__enter__).result().received is None


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
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": f"{LAUNCHED}1"}, None, 1),
    ],
)
def test_threads_are_the_configs_or_the_environments(alone, environment, asked, expected):
    for name, value in {**environment, "WORLD_SIZE": "1"}.items():
        alone.setenv(name, value)
    given: list[int] = []
    alone.setattr(torch, "set_num_threads", given.append)
    alone.setattr(devices, "cores", lambda: 6)
    alone.setattr(lightning_fabric.Fabric, "launch", lambda self: None)
    make_fabric(Config(trainer=TrainerConfig(threads=asked, accelerator="cpu")))
    assert given == [expected]


def test_devices_processes_and_a_port_have_to_be_there(alone, refused):
    alone.setattr(torch.cuda, "is_available", lambda: False)
    there = cores()
    assert accelerator_of(TrainerConfig(devices=there)) == "cpu"
    for config in (TrainerConfig(devices=there + 1), TrainerConfig(accelerator="cuda")):
        refused("too-few-devices", accelerator_of, config)
    alone.setenv("TORCHELASTIC_RUN_ID", "x")
    alone.setenv("WORLD_SIZE", "3")
    refused("wrong-number-of-processes", make_fabric, Config())
    # A port that another job has is named.
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        place = {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in (ranks | place).items():
            alone.setenv(name, value)
        two = Config(trainer=TrainerConfig(devices=2, accelerator="cpu", threads=1))
        assert port in refused("no-rendezvous", make_fabric, two).message


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
def test_processes_are_started_if_nobody_has(alone, environment, rank):
    for name, value in environment.items():
        alone.setenv(name, value)
    assert needs_launch(TrainerConfig(devices=2)) is not rank
    assert not needs_launch(TrainerConfig(devices=1))
    assert not needs_launch(TrainerConfig(devices=2, nodes=2))
    assert not is_launched()


def failure(exitcode: int, message: Any = "") -> ProcessFailure:
    found = ProcessFailure(local_rank=1, pid=7, exitcode=exitcode, error_file="<N/A>")
    found.message = message
    return found


def test_the_first_to_die_is_named_however_many_are_found_dead_at_once(tmp_path):
    now = int(time.time())

    def dead(exitcode, ago, has_file=True):
        found = failure(exitcode)
        found.timestamp = now - ago
        if has_file:
            found.error_file = str(tmp_path / f"{ago}.json")
            Path(found.error_file).touch()
            os.utime(found.error_file, (now - ago, now - ago))
        return found

    ended, raised, later = dead(-15, 40, False), dead(1, 31.5), dead(1, 31.4)
    killed, by_launcher = dead(-9, 30, False), dead(-9, 1, False)
    assert min([ended, later, raised, by_launcher], key=died) is raised
    assert min([ended, later, raised, killed], key=died) is killed


def test_a_rank_that_fails_leaves_its_error(alone, tmp_path):
    def fail(*_: Any) -> int:
        return 1 // 0

    alone.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    alone.setattr("deltacell.train.launch.end_with_parent", lambda: None)
    alone.setattr(cli, "_run", fail)
    with pytest.raises(typer.Exit) as ended:
        cli._run_as_rank(Config(), None, "last")
    assert ended.value.exit_code == 1
    assert "ZeroDivisionError" in (tmp_path / "error.json").read_text()


def test_an_error_for_users_is_its_sentence_and_another_its_traceback(alone, tmp_path):
    assert "SIGKILL" in described(failure(-9))
    alone.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    def told(error):
        try:
            raise error from ValueError("a cause")
        except Exception as raised:
            leave_error(raised)
        found = ProcessFailure(1, 7, exitcode=1, error_file=str(tmp_path / "error.json"))
        return described(found).partition("\n")[2]

    mistake = InputError("the loss is nan", where="/runs/a", fix="Try a smaller rate.")
    assert told(mistake) == "/runs/a: the loss is nan\n  Try a smaller rate."
    assert told(ZeroDivisionError("by zero")).endswith("\nZeroDivisionError: by zero")
    alone.setenv("DELTACELL_DEBUG", "1")
    assert "Traceback" in told(mistake)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who is stopped")
def test_a_child_that_is_stopped_is_killed(monkeypatch):
    monkeypatch.setattr("deltacell.train.launch.STOPPED_FOR", 0.1)
    over, killed = threading.Event(), set[int]()
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-S", "-c", script]) as child:
        watch = threading.Thread(target=kill_stalled, args=(over, killed), daemon=True)
        watch.start()
        assert child.wait(60) == -signal.SIGKILL
        over.set()
        watch.join()
    assert killed == {child.pid}
    assert "SIGSTOP" in described(failure(-9), stalled=True)


# Whatever the heartbeat's thread can be the last to hold, or to find as garbage, it does.
LAUNCHER = """
import gc, sys, time
from datetime import timedelta
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from deltacell.train.launch import launch

def beat(handler):
    held = handler()
    time.sleep(0.2)
    del held
    gc.collect()

timer = dynamic_rendezvous._PeriodicTimer
dynamic_rendezvous._PeriodicTimer = lambda _, *rest: timer(timedelta(0), beat, rest[1])
sys.executable = sys.argv[1]
gc.disable()
print(launch([], 1))
time.sleep(0.5)
"""


@pytest.mark.slow
def test_an_error_of_a_rank_ends_the_others_and_is_told_once(alone, tmp_path):
    rank = tmp_path / "rank"
    error = '{"message": "ZeroDivisionError: only rank 1"}'
    ends = f"echo '{error}' > $TORCHELASTIC_ERROR_FILE; exit 1"
    rank.write_text(f"#!/bin/sh\nif [ $RANK = 1 ]; then sleep 1; {ends}; fi\nexec sleep 600\n")
    rank.chmod(0o755)
    alone.setattr(sys, "executable", str(rank))
    began, before = time.monotonic(), {one: signal.getsignal(one) for one in signal.valid_signals()}
    with pytest.raises(RankError) as raised:
        launch([], 2)
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    assert time.monotonic() - began < 300
    told = "rank 1 failed, and the other ranks were stopped:\nZeroDivisionError: only rank 1"
    assert str(raised.value) == told


@pytest.mark.slow
def test_a_launcher_that_is_signalled_prints_no_trace_of_its_heartbeat(alone, tmp_path):
    rank = tmp_path / "rank"
    rank.write_text("#!/bin/sh\nsleep 1\nkill -TERM $PPID\nexec sleep 60\n")
    rank.chmod(0o755)
    command = [sys.executable, "-c", LAUNCHER, str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{int(signal.SIGTERM)}\n", "")
