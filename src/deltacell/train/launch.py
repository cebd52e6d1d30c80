"""Launching the ranks of a run, and what happens when one of them dies."""

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
from pathlib import Path
from typing import TYPE_CHECKING

from deltacell.base.errors import DeltacellError
from deltacell.base.files import new_file
from deltacell.train.config import TrainerConfig

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# Prefix of torchrun's run id if `launch` started the ranks; the launcher's pid follows.
LAUNCHED = "launched-by-deltacell-process-"
# Seconds after which a rank that is stopped (SIGSTOP) is killed, as all others wait for it.
STOPPED_FOR = 60.0
# Seconds that a rank has to save after its launcher is gone.
TO_SAVE = 120.0
# Exceptions of signalled launchers. Their frames hold torchrun's heartbeat, which is not stopped
# after a signal and would print a stack trace if its own thread held the last reference.
KEPT: list[BaseException] = []


class RankError(DeltacellError):
    """A rank died, and the others were stopped."""


def needs_launch(config: TrainerConfig) -> bool:
    """Return whether this process has to start the ranks of a config."""
    by_slurm = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    is_rank = "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ or by_slurm
    return config.devices > 1 and config.nodes == 1 and not is_rank


def is_launched() -> bool:
    """Return whether `launch` started this process."""
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
    over = threading.Event()
    stalled: set[int] = set()
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
            rank, failure = min(error.failures.items(), key=lambda item: died(item[1]))
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
    """Return how a rank ended, as the rest of a sentence."""
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
