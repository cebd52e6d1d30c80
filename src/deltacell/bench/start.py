"""How long the program takes to answer, in processor time and beside the start of NumPy."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltacell.errors import DeltacellError
from deltacell.words import Progress

#: Processor seconds that a command may take, and as a multiple of ``import numpy``: the second
#: holds on slower machines too.
BARS = {"help": (0.5, 5.0), "data info": (1.5, 12.0)}

_PROGRAM = [sys.executable, "-m", "deltacell"]


def run(
    times: int = 5, data: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Start commands in processes of their own and return their processor time."""
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = Path(folder, "demo")
            _processor_time([*_PROGRAM, "data", "synthetic", "demo", "--out", str(data)])
        commands = {
            "import numpy": [sys.executable, "-c", "import numpy"],
            "help": [*_PROGRAM, "--help"],
            "data info": [*_PROGRAM, "data", "info", str(data)],
        }
        # In turns, so that a busy moment of the machine is not all one command's.
        turns = [name for _ in range(times) for name in commands]
        seconds: dict[str, float] = {}
        for done, name in enumerate(turns):
            if progress is not None:
                progress(name, done, len(turns))
            took = _processor_time(commands[name])
            seconds[name] = min(took, seconds.get(name, took))
    found = {
        name: {
            "cpu_seconds": round(took, 3),
            "times_import_numpy": round(took / seconds["import numpy"], 2),
        }
        for name, took in seconds.items()
    }
    bars = {
        f"{name}: {what}": {"measured": measured, "at_most": limit, "met": measured <= limit}
        for name, limits in BARS.items()
        for (what, measured), limit in zip(found[name].items(), limits, strict=True)
    }
    return {
        "command": "deltacell bench start",
        "rows": [{"command": name, **times_of} for name, times_of in found.items()],
        "bars": bars,
        "machine": {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
    }


def _processor_time(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise DeltacellError(f"{' '.join(command[1:])} ended with {done.returncode}: {last}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
