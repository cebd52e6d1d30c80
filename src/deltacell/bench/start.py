"""How long the program takes to answer, in processor time and beside the start of NumPy."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from deltacell.bench.process import in_turns, silent
from deltacell.errors import DeltacellError
from deltacell.words import Progress

PROGRAM = [sys.executable, "-m", "deltacell"]


def run(times: int = 5, data: Path | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = Path(folder, "demo")
            _processor_time([*PROGRAM, "data", "synthetic", "demo", "--out", str(data)])
        commands = {
            "import numpy": [sys.executable, "-c", "import numpy"],
            "help": [*PROGRAM, "--help"],
            "data info": [*PROGRAM, "data", "info", str(data)],
        }
        ways = {name: partial(_processor_time, command) for name, command in commands.items()}
        seconds = {name: min(took) for name, took in in_turns(ways, times, progress).items()}
    rows = [
        {
            "command": name,
            "cpu_seconds": round(took, 3),
            "times_import_numpy": round(took / seconds["import numpy"], 2),
        }
        for name, took in seconds.items()
    ]
    kinds = ("cpu_seconds", "times_import_numpy")
    measured: Any = {f"{row['command']}: {what}": row[what] for row in rows for what in kinds}
    return {"rows": rows, "measured": measured}


def _processor_time(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise DeltacellError(f"{' '.join(command[1:])} ended with {done.returncode}: {last}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
