"""The processes of a run: devices, signals, launching them, and what ranks exchange."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

from deltacell.errors import DeltacellError, InputError
from deltacell.files import new_file
from deltacell.train.config import Config, HeteroCellConfig, TrainerConfig

if TYPE_CHECKING:
    import lightning
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}

# How long a rank waits for another, such as while that one writes a checkpoint.
PATIENCE = timedelta(minutes=30)
# What torchrun's id of a run begins with if `launch` started it; its process number follows.
LAUNCHED = "launched-by-deltacell-process-"
# Seconds after which a rank that is stopped (SIGSTOP) is killed, as all others wait for it.
STOPPED_FOR = 60.0
# Seconds that a rank has to save after the process that launched it is gone.
TO_SAVE = 120.0
# Slurm's pre-emption and time limit, a terminal's Ctrl-C, and Slurm's early warning.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# What a rank gives `highest` when it is time to save; less than any of `STOPPING`.
SAVE = 1


class StopSignals:
    """While this is open, a signal is noted; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


def accelerator_of(config: TrainerConfig) -> str:
    """Return ``cpu`` or ``cuda``, or raise if there are fewer devices than asked for."""
    kind = config.accelerator
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.cuda.device_count() if kind == "cuda" else cores()
    if config.devices > there:
        what = "GPUs that torch can use" if kind == "cuda" else "cores"
        what = f"trainer.devices is {config.devices}, but this machine has {there} {what}"
        raise InputError(what, code="too-few-devices", fix="Set trainer.accelerator=cpu or fewer.")
    return kind


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(config: TrainerConfig) -> None:
    """Set the threads of this process: the config's, OMP_NUM_THREADS, or its share of the cores."""
    # torchrun sets OMP_NUM_THREADS to 1 if it is not set, and nobody can tell the difference.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not is_launched()
    asked = "" if by_torchrun else os.environ.get("OMP_NUM_THREADS", "")
    by_user = int(asked) if asked.isdecimal() else 0
    torch.set_num_threads(config.threads or by_user or max(1, cores() // config.devices))


def make_fabric(config: Config) -> lightning.Fabric:
    """Return Fabric, launched: this process is one rank from here on."""
    # Only networks need Lightning, which takes a second to load.
    import lightning
    from lightning.fabric.strategies.ddp import DDPStrategy

    # Lightning announces every process on a line of its own.
    for part in ("fabric", "pytorch"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    trainer = config.trainer
    kind = accelerator_of(trainer)
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else config.ranks
    if started != config.ranks:
        what = f"{started} processes, but trainer.devices x trainer.nodes is {config.ranks}"
        fix = "Set trainer.devices to torchrun's --nproc-per-node."
        raise InputError(what, code="wrong-number-of-processes", fix=fix)
    strategy: DDPStrategy | str = "auto"
    if config.ranks > 1:
        # No gene reads the last metabolic layer; what reconstructs networks has one loss only.
        unused = config.loss.name != "dango"
        if isinstance(config.model, HeteroCellConfig):
            unused = config.model.metabolism
        backend = "nccl" if kind == "cuda" else "gloo"
        options: Any = {"find_unused_parameters": unused, "process_group_backend": backend}
        strategy = DDPStrategy(timeout=PATIENCE, **options)
    fabric = lightning.Fabric(
        accelerator=kind,
        devices=trainer.devices,
        num_nodes=trainer.nodes,
        strategy=strategy,
        precision=PRECISIONS[trainer.precision],  # type: ignore[arg-type]
    )
    if kind == "cpu":
        set_threads(trainer)
    try:
        fabric.launch()
    except dist.DistNetworkError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        what = f"the ranks cannot meet at {place}: {str(error).rstrip()}"
        fix = "Set MASTER_PORT to a free port on the machine of rank 0, for all ranks."
        raise InputError(what, code="no-rendezvous", fix=fix) from error
    return fabric


# What ranks exchange in a step: their gradients, and whether one has to stop.


# DDP compares the annotations of a hook with its own classes, and ours are only text.
def sum_gradients(loop, bucket):  # type: ignore[no-untyped-def]
    """Sum gradients over ranks, because every rank's loss is its share of the batch's."""
    loop.gradients_ready = time.perf_counter()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def highest(number: int, group: Any) -> int:
    """Return the highest number (0, `SAVE` or a signal) that a rank gives, so that all do the same.

    The `group` is one of hosts, so that no device is waited for; None for a single process.
    """
    given = torch.tensor(number)
    if group is not None:
        dist.all_reduce(given, dist.ReduceOp.MAX, group=group)
    return int(given)


# Several processes on this machine, by torchrun's launcher.


class RankError(DeltacellError):
    """A rank died, and the others were stopped; `rank` is the first that did."""

    def __init__(self, rank: int, how: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} {how}")


def needs_launch(config: TrainerConfig) -> bool:
    """Return whether the processes that a config asks for are still to be started."""
    by_slurm = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    is_rank = "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ or by_slurm
    return config.devices > 1 and config.nodes == 1 and not is_rank


def is_launched() -> bool:
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(LAUNCHED)


def launch(words: Sequence[str], processes: int) -> int:
    """Run a deltacell command in several processes; return the signal that stopped it, or 0.

    If one dies, the others are stopped within seconds and `RankError` names it.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What elastic logs of a failure is in the error that is raised.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    over, stalled = threading.Event(), set[int]()
    threading.Thread(target=kill_stalled, args=(over, stalled), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="deltacell-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=f"{LAUNCHED}{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.02,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "deltacell", *words)
        except ChildFailedError as error:
            rank, failure = min(error.failures.items(), key=lambda one: died(one[1]))
            raise RankError(rank, described(failure, failure.pid in stalled)) from None
        except SignalException as error:
            return int(error.sigval)
        finally:
            over.set()
    return 0


def end_with_parent() -> None:
    """Let this rank save and end once the process that launched it is gone."""
    parent = int(os.environ["TORCHELASTIC_RUN_ID"].removeprefix(LAUNCHED))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TO_SAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill_stalled(over: threading.Event, killed: set[int]) -> None:
    """Kill children of this process that are stopped for long, until it is over."""
    since: dict[int, float] = {}
    me = os.getpid()
    while not over.wait(STOPPED_FOR / 60):
        with suppress(OSError):
            for child in map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split()):
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "T":
                    since.pop(child, None)
                elif time.monotonic() - since.setdefault(child, time.monotonic()) > STOPPED_FOR:
                    killed.add(child)
                    os.kill(child, signal.SIGKILL)


def died(failure: ProcessFailure) -> tuple[bool, float]:
    """Return what sorts the first rank to die before those that died of its death.

    The launcher ends the others by SIGTERM, and after 30 s by SIGKILL. An error has the time of its
    file; a rank that something else killed left none, and was found before it was 10 s old.
    """
    has_file = Path(failure.error_file).is_file()
    time_ = Path(failure.error_file).stat().st_mtime if has_file else failure.timestamp - 10
    return failure.exitcode == -signal.SIGTERM, time_


def described(failure: ProcessFailure, stalled: bool = False) -> str:
    if stalled:
        return f"was stopped for {STOPPED_FOR:.0f} s (SIGSTOP); all ranks were ended"
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return f"was killed by {name}; the other ranks were stopped"
    return f"failed, and the other ranks were stopped:\n{failure.message}"


def leave_error(error: Exception) -> None:
    """Tell the launcher why this rank failed: a sentence if a user can act on it, or a trace."""
    for_users = isinstance(error, DeltacellError) and "DELTACELL_DEBUG" not in os.environ
    text = str(error) if for_users else "".join(traceback.format_exception(error)).rstrip()
    with new_file(os.environ["TORCHELASTIC_ERROR_FILE"]) as temporary:
        temporary.write_text(json.dumps({"message": text}))
