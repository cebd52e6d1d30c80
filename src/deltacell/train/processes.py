"""The processes of a run: devices, signals, launching, and communication between ranks."""

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

from deltacell.base.errors import DeltacellError, InputError
from deltacell.base.files import new_file
from deltacell.train.config import Config, TrainerConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}

# Collectives time out after this; a rank may wait for another that writes a checkpoint.
PATIENCE = timedelta(minutes=30)
# Prefix of torchrun's run id if `launch` started the ranks; the launcher's pid follows.
LAUNCHED = "launched-by-deltacell-process-"
# Seconds after which a rank that is stopped (SIGSTOP) is killed, as all others wait for it.
STOPPED_FOR = 60.0
# Seconds that a rank has to save after its launcher is gone.
TO_SAVE = 120.0
# Slurm's pre-emption and time limit, a terminal's Ctrl-C, and Slurm's early warning.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# The number for `highest` when it is time to save; lower than any of `STOPPING`.
SAVE = 1
# Exceptions of signalled launchers. Their frames hold torchrun's heartbeat, which is not stopped
# after a signal and would print a stack trace if its own thread held the last reference.
KEPT: list[BaseException] = []


class StopSignals:
    """Record signals while this context is open; a second Ctrl-C interrupts at once."""

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
    """Return ``cpu`` or ``cuda``, or raise if there are too few devices."""
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
    """Set the number of threads: the config's, OMP_NUM_THREADS, or this rank's share of cores."""
    # torchrun sets OMP_NUM_THREADS to 1 if it is unset, so there it may not be the user's.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not is_launched()
    asked = "" if by_torchrun else os.environ.get("OMP_NUM_THREADS", "")
    by_user = int(asked) if asked.isdecimal() else 0
    torch.set_num_threads(config.threads or by_user or max(1, cores() // config.devices))


def make_fabric(config: Config) -> Fabric:
    """Return a launched Fabric, which makes this process one rank."""
    # Only networks need Lightning, which is slow to import.
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Lightning logs a line for every process.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    trainer = config.trainer
    kind = accelerator_of(trainer)
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else config.ranks
    if started != config.ranks:
        what = f"{started} processes, but trainer.devices x trainer.nodes is {config.ranks}"
        fix = "Set trainer.devices to torchrun's --nproc-per-node."
        raise InputError(what, code="wrong-number-of-processes", fix=fix)
    strategy: DDPStrategy | str = "auto"
    if config.ranks > 1:
        unused = config.model.leaves_parameters_unused(config.loss)
        backend = "nccl" if kind == "cuda" else "gloo"
        options: Any = {"find_unused_parameters": unused, "process_group_backend": backend}
        strategy = DDPStrategy(timeout=PATIENCE, **options)
    fabric = Fabric(
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


# DDP checks a hook's annotations against its own classes, and ours are strings.
def sum_gradients(loop, bucket):  # type: ignore[no-untyped-def]
    """Sum gradients over ranks, because a rank's loss is its share of the batch's."""
    loop.gradients_ready = time.perf_counter()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def highest(number: int, group: Any) -> int:
    """Return the maximum over ranks of 0, `SAVE` or a signal, so that all ranks do the same.

    `group` communicates between hosts, which does not wait for a device; None for one process.
    """
    given = torch.tensor(number)
    if group is not None:
        dist.all_reduce(given, dist.ReduceOp.MAX, group=group)
    return int(given)


class RankError(DeltacellError):
    """A rank died, and the others were stopped."""


def needs_launch(config: TrainerConfig) -> bool:
    """Return whether this process has to start the ranks of a config."""
    by_slurm = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    is_rank = "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ or by_slurm
    return config.devices > 1 and config.nodes == 1 and not is_rank


def is_launched() -> bool:
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(LAUNCHED)


def launch(words: Sequence[str], processes: int) -> int:
    """Run a deltacell command in several processes with torchrun's launcher.

    Returns the signal that stopped them, or 0. If a rank dies, the others are stopped within
    seconds and `RankError` names it.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The error that is raised contains what elastic would log.
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
            how = described(failure, failure.pid in stalled)
            raise RankError(f"rank {rank} {how}") from None
        except SignalException as error:
            KEPT.append(error)
            return int(error.sigval)
        finally:
            over.set()
    return 0


def end_with_parent() -> None:
    """Make this rank save and exit once its launcher is gone."""
    parent = int(os.environ["TORCHELASTIC_RUN_ID"].removeprefix(LAUNCHED))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TO_SAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill_stalled(over: threading.Event, killed: set[int]) -> None:
    """Kill children of this process that stay stopped, until `over` is set."""
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
    """Return a key that sorts the first rank to die before those that died because of it.

    The launcher ends the others with SIGTERM, and after 30 s with SIGKILL. A rank that raised left
    an error file, whose time counts; one that was killed left none, and was found within 10 s.
    """
    has_file = Path(failure.error_file).is_file()
    time_ = Path(failure.error_file).stat().st_mtime if has_file else failure.timestamp - 10
    return failure.exitcode == -signal.SIGTERM, time_


def described(failure: ProcessFailure, stalled: bool = False) -> str:
    if stalled:
        return f"was stopped for {STOPPED_FOR:.0f} s (SIGSTOP); all ranks were ended"
    if failure.exitcode < 0:
        killed = signal.Signals(-failure.exitcode).name
        return f"was killed by {killed}; the other ranks were stopped"
    return f"failed, and the other ranks were stopped:\n{failure.message}"


def leave_error(error: Exception) -> None:
    """Write the error file of this rank: the message of our own errors, a stack trace of others."""
    for_users = isinstance(error, DeltacellError) and "DELTACELL_DEBUG" not in os.environ
    text = str(error) if for_users else "".join(traceback.format_exception(error)).rstrip()
    with new_file(os.environ["TORCHELASTIC_ERROR_FILE"]) as temporary:
        temporary.write_text(json.dumps({"message": text}))
