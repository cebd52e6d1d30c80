"""The processes of a run: devices, signals, launching them, and what ranks exchange."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deltacell.errors import DeltacellError, InputError
from deltacell.train.config import Config, DangoLossConfig, HeteroCellConfig, TrainerConfig

if TYPE_CHECKING:
    import lightning
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another, such as while that one writes a checkpoint."""

LAUNCHED = "DELTACELL_LAUNCHED"
"""Set in the processes that `launch` starts, to the number of the process that did."""

STOPPED_FOR = 60.0
"""Seconds after which a rank that is stopped (SIGSTOP) is killed, as all others wait for it."""

TO_SAVE = 120.0
"""Seconds that a rank has to save after the process that launched it is gone."""

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Slurm's pre-emption and time limit, a terminal's Ctrl-C, and Slurm's early warning."""

SAVE = 1
"""What a rank gives `Agreement.reached` when it is time to save; less than any of `STOPPING`."""

T = TypeVar("T")


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


def exit_code(number: int) -> int:
    """Return the exit code of a program that a signal stopped, 128 + its number."""
    return 128 + number


def accelerator_of(config: TrainerConfig) -> str:
    """Return ``cpu`` or ``cuda``, or raise if there are fewer devices than asked for."""
    kind = config.accelerator
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.cuda.device_count() if kind == "cuda" else cores()
    if config.devices > there:
        raise InputError(
            f"trainer.devices is {config.devices}, but this machine has {there} "
            f"{'GPUs that torch can use' if kind == 'cuda' else 'cores'}",
            code="too-few-devices",
            fix="Set trainer.devices to at most that."
            if there
            else "Set trainer.accelerator=cpu, or install a build of torch for your GPU.",
        )
    return kind


def cores() -> int:
    """Return how many cores this process may use."""
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
        raise InputError(
            f"there are {started} processes, but trainer.devices x trainer.nodes is {config.ranks}",
            code="wrong-number-of-processes",
            fix="Set trainer.devices to torchrun's --nproc-per-node.",
        )
    strategy: DDPStrategy | str = "auto"
    if config.ranks > 1:
        strategy = DDPStrategy(
            find_unused_parameters=_has_unused_parameters(config),
            process_group_backend="nccl" if kind == "cuda" else "gloo",
            timeout=PATIENCE,
        )
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
        raise InputError(
            f"the ranks cannot meet at {place}: {str(error).rstrip()}",
            code="no-rendezvous",
            fix="Set MASTER_PORT to a free port on the machine of rank 0, for all ranks.",
        ) from error
    return fabric


def _has_unused_parameters(config: Config) -> bool:
    if isinstance(config.model, HeteroCellConfig):
        # No gene reads the last metabolic layer.
        return config.model.metabolism
    # What reconstructs the networks has no part in other losses.
    return not isinstance(config.loss, DangoLossConfig)


# What ranks exchange in a step: their gradients, and whether one has to stop.


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class GradientSum:
    """Sums gradients over ranks, because every rank's loss is its share of the batch's."""

    def __init__(self, module: nn.Module) -> None:
        self._last_ready = float("inf")
        if isinstance(module, DistributedDataParallel):
            module.register_comm_hook(self, _sum)

    def begin(self) -> None:
        """Begin a backward."""
        self._last_ready = float("inf")

    def exposed(self) -> float:
        """Return the seconds since the last gradients were ready, at the end of a backward.

        What was sent before is hidden behind the computation of the rest.
        """
        return max(0.0, time.perf_counter() - self._last_ready)

    def ready(self) -> None:
        """Note that a bucket of gradients is ready and sent."""
        self._last_ready = time.perf_counter()


# DDP compares the annotations of a hook with its own classes, and ours are only text.
def _sum(state, bucket):  # type: ignore[no-untyped-def]
    state.ready()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(_first_value)


def _first_value(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]


class Agreement:
    """All ranks stop, or save, after the same step if one of them has to.

    The question travels while the next step is computed, so nobody waits for it, and the answer
    is one step old.
    """

    def __init__(self) -> None:
        self._alone = world_size() == 1
        self._group = None if self._alone else dist.new_group(backend="gloo")
        self._asked: tuple[Any, torch.Tensor] | None = None

    def reached(self, mine: int) -> int:
        """Return the highest number that a rank gave a step ago; alone, one's own.

        The numbers are 0 to continue, `SAVE`, or that of a signal.
        """
        if self._alone:
            return mine
        answer = 0
        if self._asked is not None:
            work, number = self._asked
            work.wait()
            answer = int(number)
        number = torch.tensor(mine)
        work = dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._asked = (work, number)
        return answer

    def arrive(self) -> None:
        """Wait for what is still under way, and keep its answer for the next `reached`."""
        if self._asked is not None:
            self._asked[0].wait()

    def settle(self) -> None:
        """Wait for what is still under way, and forget it."""
        self.arrive()
        self._asked = None


def from_first_rank(value: Any, device: torch.device) -> Any:
    """Return rank 0's value, which JSON can hold, on all ranks."""
    if world_size() == 1:
        return value
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)
    length = torch.tensor(len(text), device=device)
    dist.broadcast(length, 0)
    if dist.get_rank() != 0:
        text = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(text, 0)
    return json.loads(bytes(text.cpu().tolist()))


# Several processes on this machine, watched, and stopped together.


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
    """Return whether `launch` started this process."""
    return LAUNCHED in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


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
    before = os.environ.get(LAUNCHED)
    os.environ[LAUNCHED] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="deltacell-") as logs, _Watch() as watch:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=f"deltacell-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "deltacell", *words)
        except ChildFailedError as error:
            rank, failure = _first_failure(error, watch.first)
            stalled = failure.pid == watch.first and watch.stalled
            raise RankError(rank, watch.stalled if stalled else _described(failure)) from None
        except SignalException as error:
            return int(error.sigval)
        finally:
            if before is None:
                del os.environ[LAUNCHED]
    return 0


def end_with_parent() -> None:
    """Let this rank save and end once the process that launched it is gone."""
    parent = int(os.environ[LAUNCHED])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TO_SAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def reported(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function whose error reaches the process that launched this one."""
    from torch.distributed.elastic.multiprocessing.errors import record

    return cast(Callable[..., T], record(function))


class _Watch(threading.Thread):
    """Notes which child of this process dies first, and kills one that is stopped for long.

    Elastic looks five times per second, by when other ranks have died of the first.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first: int | None = None
        self.stalled = ""
        self._over = threading.Event()
        self._since: dict[int, float] = {}

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def run(self) -> None:
        mine = os.getpid()
        while self.first is None and not self._over.wait(0.02):
            with suppress(OSError):
                # It stays to be waited for by whoever started it.
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                if dead is not None and dead.si_status != 0:
                    self.first = dead.si_pid
            with suppress(OSError):
                for child in Path(f"/proc/{mine}/task/{mine}/children").read_text().split():
                    self._look_at(int(child))

    def _look_at(self, child: int) -> None:
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "T":
            self._since.pop(child, None)
        elif time.monotonic() - self._since.setdefault(child, time.monotonic()) > STOPPED_FOR:
            self.first = child
            self.stalled = f"was stopped for {STOPPED_FOR:.0f} s (SIGSTOP); all ranks were ended"
            os.kill(child, signal.SIGKILL)


def _first_failure(error: ChildFailedError, seen: int | None = None) -> tuple[int, ProcessFailure]:
    """Return the rank that died first; those that the launcher stopped after it do not count."""
    for rank, failure in error.failures.items():
        if failure.pid == seen:
            return rank, failure
    own = {r: f for r, f in error.failures.items() if f.exitcode != -signal.SIGTERM}
    if not own:
        return error.get_first_failure()
    return min(own.items(), key=lambda item: item[1].timestamp)


def _described(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return f"was killed by {name}; the other ranks were stopped"
    message: Any = failure.message
    if isinstance(message, dict):
        trace = message.get("extraInfo", {}).get("py_callstack", "")
        message = trace or message.get("message", "")
    text = str(message).rstrip()
    # An error that a user can act on is its sentence alone; the last one is what was raised.
    for_users = re.findall(r"^deltacell\.[\w.]+Error: ", text, re.MULTILINE)
    if for_users and "DELTACELL_DEBUG" not in os.environ:
        text = text.rpartition(for_users[-1])[2]
    return f"failed, and the other ranks were stopped:\n{text}"
