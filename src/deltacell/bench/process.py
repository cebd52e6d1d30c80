"""Measuring in a process of its own, so that nothing measured before is in the way."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deltacell.errors import DeltacellError
from deltacell.words import Progress

MIB = 2**20


class PeakMemory:
    """The peak memory of this process since the object was made, above what it held then.

    On Linux the system's own peak is reset first; elsewhere that cannot be done.
    """

    def __init__(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _bytes_held("VmRSS")

    def mib(self) -> float:
        """Return the peak in MiB."""
        return max(0, _bytes_held("VmHWM") - self._before) / MIB


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return _bytes_held("VmHWM") / MIB


def in_own_process(
    function: str, settings: dict[str, Any], told: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Call ``module:name`` with JSON-serialisable settings in a new process; return its dict.

    The function also gets ``tell``, and `told` is called with each dict that it passes to that.
    """
    code = "from deltacell.bench.process import _serve; _serve()"
    command = [sys.executable, "-c", code, function, json.dumps(settings)]
    result: dict[str, Any] | None = None
    # A file, because a full pipe that nobody reads would stop the process.
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as p,
    ):
        assert p.stdout is not None
        try:
            for line in p.stdout:
                if line.startswith(_MARK):
                    kind, value = json.loads(line.removeprefix(_MARK))
                    if kind == "told":
                        told(value)
                    else:
                        result = value
            p.wait()
        except BaseException:
            p.kill()
            raise
        complaints.seek(0)
        last = "\n".join(complaints.read().strip().splitlines()[-3:])
    if p.returncode != 0 or result is None:
        raise DeltacellError(f"the process that ran {function} ended with {p.returncode}: {last}")
    return result


def counted(progress: Progress | None, total: int) -> Callable[[dict[str, Any]], None]:
    """Return a function for `in_own_process` that reports each of `total` turns as it begins."""
    done = 0

    def told(news: dict[str, Any]) -> None:
        nonlocal done
        if progress is not None:
            progress(news["what"], done, total)
        done = min(done + 1, total - 1)

    return told


_MARK = "deltacell-bench "


def _serve() -> None:
    from importlib import import_module

    module, name = sys.argv[1].split(":")
    function = getattr(import_module(module), name)
    _say("result", function(**json.loads(sys.argv[2]), tell=lambda value: _say("told", value)))


def _say(kind: str, value: dict[str, Any]) -> None:
    sys.stdout.write(f"{_MARK}{json.dumps([kind, value])}\n")
    sys.stdout.flush()


def _bytes_held(field: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    import resource

    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else held * 1024


def machine() -> dict[str, Any]:
    """Return the machine and the versions that matter to a measurement."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
