"""How fast traces are read and explained, and how much memory that takes."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.bench.process import MIB, in_own_process
from deltacell.errors import InputError
from deltacell.words import Progress

BARS = {"read_s_per_gb": 15.0, "peak_mib_per_gb": 1024.0}
"""What a gigabyte may cost; they apply to traces of at least that."""
GB = 10**9


def run(
    files: Sequence[Path], *, hta: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure reading and explaining of traces, each in a process of its own.

    ``events`` are those with a duration, and ``mb`` is unpacked. ``read_s`` is reading alone;
    ``explain_s`` is the whole from the file to its attribution, reading included; ``peak_mib`` is
    all the memory of the process, Python included. Beside the row of each file they stand for all
    files together, the memory as the largest.
    """
    if not files:
        raise InputError("no trace was named", fix="Name one, or make one with --make.")
    rows = []
    for number, file in enumerate(files):
        if progress is not None:
            progress(f"measuring {file.name}", number, len(files))
        if not file.is_file():
            raise InputError("there is no such file", where=file)
        function = "deltacell.bench.trace:measure"
        row = in_own_process(function, {"file": str(file)}, lambda said: None)
        if "error" in row:
            raise InputError(row["error"], where=file)
        if hta is not None:
            row |= _beside_hta(row, file, hta)
        rows.append(row)
    return {
        "benchmark": "trace",
        "command": "deltacell bench trace",
        "events": sum(row["events"] for row in rows),
        "mb": sum(row["mb"] for row in rows),
        "read_s": sum(row["read_s"] for row in rows),
        "explain_s": sum(row["explain_s"] for row in rows),
        "peak_mib": max(row["peak_mib"] for row in rows),
        "rows": rows,
        "bars": _bars(rows),
        "machine": {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }


def measure(file: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Read and attribute one trace in this process, and return what it took."""
    from deltacell.profile.trace.attribution import attribute
    from deltacell.profile.trace.read import read_trace

    begin = time.perf_counter()
    try:
        trace = read_trace(file)
    except InputError as error:
        return {"error": error.what}
    read_s = time.perf_counter() - begin
    read_mib = _peak_mib()
    attribute(trace)
    explain_s = time.perf_counter() - begin
    events = len(trace)
    return {
        "name": Path(file).name,
        "events": events,
        "mb": trace.text_bytes / 1e6,
        "read_s": read_s,
        "explain_s": explain_s,
        "events_per_s": events / explain_s,
        "read_events_per_s": events / read_s,
        "read_mib": read_mib,
        "peak_mib": _peak_mib(),
    }


def _beside_hta(row: dict[str, Any], file: Path, python: Path) -> dict[str, Any]:
    from deltacell.bench.hta import measure_hta

    theirs = measure_hta(file, python)
    return {
        "hta_load_s": theirs["load_s"],
        "hta_s": theirs["total_s"],
        "hta_peak_mib": theirs["peak_mib"],
        "times_faster_than_hta": theirs["total_s"] / row["explain_s"],
        "memory_of_hta": row["peak_mib"] / theirs["peak_mib"],
    }


def _bars(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    bars = {}
    for row in rows:
        if row["mb"] * 1e6 < GB:
            continue
        gigabytes = row["mb"] * 1e6 / GB
        for name, measured in (("read_s", row["read_s"]), ("peak_mib", row["peak_mib"])):
            bar = BARS[f"{name}_per_gb"]
            bars[f"{name} of {row['name']}, a GB"] = {
                "at_most": bar,
                "measured": measured / gigabytes,
                "met": measured / gigabytes <= bar,
            }
    return bars


def _peak_mib() -> float:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / MIB if sys.platform == "darwin" else held * 1024 / MIB
