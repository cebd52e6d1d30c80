"""How long the program takes to answer, in processor time and beside the start of NumPy."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltacell.errors import DeltacellError

#: Processor seconds that a command may take, and as a multiple of ``import numpy``: the second
#: holds on slower machines too.
BARS = {"help": (0.5, 5.0), "data info": (1.5, 12.0)}


def run(
    times: int = 5,
    data: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Start commands in processes of their own and return their processor time.

    Parameters
    ----------
    times
        How often each is started; the least counts, as all else is other programs' work.
    data
        The directory that `data info` shows; the demo where not given.
    progress
        Called with a label, the starts done and the starts in all.
    """
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = Path(folder, "demo")
            _started([*_PROGRAM, "data", "synthetic", "demo", "--out", str(data)])
        commands = {
            "import numpy": [sys.executable, "-c", "import numpy"],
            "help": [*_PROGRAM, "--help"],
            "data info": [*_PROGRAM, "data", "info", str(data)],
        }
        seconds: dict[str, float] = {}
        for i in range(times):
            # In turns, so that a busy moment of the machine is not all one command's.
            for j, (name, command) in enumerate(commands.items()):
                if progress is not None:
                    progress(name, i * len(commands) + j, times * len(commands))
                took = _started(command)
                seconds[name] = min(took, seconds.get(name, took))
    rows = [
        {
            "command": name,
            "cpu_seconds": round(took, 3),
            "times_import_numpy": round(took / seconds["import numpy"], 2),
        }
        for name, took in seconds.items()
    ]
    bars = {}
    for row in rows:
        if row["command"] in BARS:
            most, ratio = BARS[str(row["command"])]
            for what, limit in (("cpu_seconds", most), ("times_import_numpy", ratio)):
                measured = float(str(row[what]))
                bars[f"{row['command']}: {what}"] = {
                    "measured": measured,
                    "at_most": limit,
                    "met": measured <= limit,
                }
    return {
        "command": "deltacell bench start",
        "rows": rows,
        "bars": bars,
        "machine": {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
    }


_PROGRAM = [sys.executable, "-m", "deltacell"]


def _started(command: list[str]) -> float:
    """Return the processor time of a process, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise DeltacellError(f"{' '.join(command[1:])} ended with {done.returncode}: {last}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
