"""Processor time that commands take to start, compared with `import numpy`."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from deltacell.bench.process import in_turns

PROGRAM = [sys.executable, "-m", "deltacell"]


def run(times: int = 5, data: Path | None = None) -> dict[str, Any]:
    """Measure the processor time of commands; each is the least of some times."""
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = Path(folder, "demo")
            processor_time([*PROGRAM, "data", "synthetic", "demo", "--out", str(data)])
        commands = {
            "import numpy": [sys.executable, "-c", "import numpy"],
            "help": [*PROGRAM, "--help"],
            "data info": [*PROGRAM, "data", "info", str(data)],
        }
        ways = {name: partial(processor_time, command) for name, command in commands.items()}
        seconds = {name: min(took) for name, took in in_turns(ways, times).items()}
    rows = []
    measured = dict[str, float]()
    for name, took in seconds.items():
        ratio = took / seconds["import numpy"]
        row = {"cpu_seconds": round(took, 3), "times_import_numpy": round(ratio, 2)}
        rows.append({"command": name, **row})
        measured |= {f"{name}: {what}": value for what, value in row.items()}
    return {"rows": rows, "measured": measured}


def processor_time(command: list[str]) -> float:
    """Return the seconds of processor time that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
