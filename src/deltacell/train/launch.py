"""Several processes on this machine: one a device, watched, and brought down together."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

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
"""Set in the processes that `launch` starts."""

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
    os.environ[LAUNCHED] = "1"
    with tempfile.TemporaryDirectory(prefix="deltacell-") as logs:
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
            rank, failure = _first(error)
            raise RankError(rank, _said(failure)) from None
        except SignalException as error:
            return int(error.sigval)
        finally:
            if before is None:
                del os.environ[LAUNCHED]
    return 0


def is_launched() -> bool:
    """Return whether `launch` started this process."""
    return LAUNCHED in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


def reported(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function whose error reaches the process that launched this one."""
    return cast(Callable[..., T], record(function))


def _first(error: ChildFailedError) -> tuple[int, ProcessFailure]:
    """Return the rank that died first; those that the launcher stopped after it do not count."""
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
