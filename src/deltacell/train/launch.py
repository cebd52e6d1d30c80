"""Several processes on this machine: one a device, watched, and brought down together."""

from __future__ import annotations

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
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    record,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deltacell.errors import DeltacellError
from deltacell.train.config import TrainerConfig

LAUNCHED = "DELTACELL_LAUNCHED"
"""Set in the processes that `launch` starts: the number of the process that did."""

STOPPED_FOR = 60.0
"""Seconds after which a rank that does not run (SIGSTOP) is killed, as all others wait for it."""

TO_SAVE = 120.0
"""Seconds that a rank has to save after the process that launched it is gone."""

T = TypeVar("T")


class RankError(DeltacellError):
    """A rank died, and the others were stopped.

    Parameters
    ----------
    rank
        The first that did.
    said
        Its error, or the signal that killed it.
    """

    def __init__(self, rank: int, said: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} {said}")


def is_rank() -> bool:
    """Return whether this process is already one of several: of ours, of torchrun or of Slurm."""
    by_slurm = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    return "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ or by_slurm


def needs_launch(config: TrainerConfig) -> bool:
    """Return whether the processes that a config asks for are still to be started."""
    return config.devices > 1 and config.nodes == 1 and not is_rank()


def launch(words: Sequence[str], processes: int) -> int:
    """Run a deltacell command in several processes; return the signal that stopped it, or 0.

    Where one dies the others are stopped within seconds, and the error names it.

    Parameters
    ----------
    words
        The command without the program's name.
    processes
        How many.
    """
    # What it logs of a failure is in the error that is raised.
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
            rank, failure = _first(error, watch.first)
            said = watch.said if failure.pid == watch.first and watch.said else _said(failure)
            raise RankError(rank, said) from None
        except SignalException as error:
            return int(error.sigval)
        finally:
            if before is None:
                del os.environ[LAUNCHED]
    return 0


def is_launched() -> bool:
    """Return whether `launch` started this process."""
    return LAUNCHED in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


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
    return cast(Callable[..., T], record(function))


class _Watch(threading.Thread):
    """Sees which child of this process dies first, and kills one that stands still.

    Whoever waits for all of them looks five times per second, by when the others have died of it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first: int | None = None
        self.said = ""
        self._over = threading.Event()
        self._still_since: dict[int, float] = {}

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def run(self) -> None:
        while self.first is None and not self._over.wait(0.02):
            with suppress(OSError):
                # It stays to be waited for by whoever started it.
                flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
                dead = os.waitid(os.P_ALL, 0, flags)
                if dead is not None and dead.si_status != 0:
                    self.first = dead.si_pid
            for child in _children():
                self._look_at(child)

    def _look_at(self, child: int) -> None:
        with suppress(OSError):
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "T":
                self._still_since.pop(child, None)
            elif time.monotonic() - self._still_since.setdefault(child, time.monotonic()) > (
                STOPPED_FOR
            ):
                self.first = child
                self.said = f"stood still for {STOPPED_FOR:.0f} s (SIGSTOP); all were stopped"
                os.kill(child, signal.SIGKILL)


def _children() -> list[int]:
    mine = os.getpid()
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{mine}/task/{mine}/children").read_text().split()]
    return []


def _first(error: ChildFailedError, seen: int | None = None) -> tuple[int, ProcessFailure]:
    """Return the rank that died first; those that the launcher stopped after it do not count."""
    for rank, failure in error.failures.items():
        if failure.pid == seen:
            return rank, failure
    own = {r: f for r, f in error.failures.items() if f.exitcode != -signal.SIGTERM}
    if not own:
        return error.get_first_failure()
    return min(own.items(), key=lambda item: item[1].timestamp)


def _said(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"was killed by {signal.Signals(-failure.exitcode).name}; the others were stopped"
    message: Any = failure.message
    if isinstance(message, dict):
        trace = message.get("extraInfo", {}).get("py_callstack", "")
        message = trace or message.get("message", "")
    text = str(message).rstrip()
    # An error that a user can act on is its sentence alone.
    for_users = re.findall(r"^deltacell\.[\w.]+Error: ", text, re.MULTILINE)
    if for_users and "DELTACELL_DEBUG" not in os.environ:
        # The last one is what was raised; those above are where it came from.
        text = text.rpartition(for_users[-1])[2]
    return f"failed, and the others were stopped:\n{text}"
