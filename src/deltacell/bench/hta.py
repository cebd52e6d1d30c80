"""HolisticTraceAnalysis on the same file, in an environment of its own.

It is not a dependency: its versions of pandas and others are its own affair.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltacell.errors import DeltacellError

PACKAGE = "HolisticTraceAnalysis==0.5.0"


def hta_environment(folder: str | os.PathLike[str]) -> Path:
    """Make an environment with HolisticTraceAnalysis from PyPI, and return its Python."""
    python = Path(folder) / "bin" / "python"
    if not _has_hta(python):
        _done([sys.executable, "-m", "venv", str(folder)], f"the environment {folder}")
        _done([str(python), "-m", "pip", "install", "--quiet", PACKAGE], PACKAGE)
    return python


def measure_hta(file: str | os.PathLike[str], python: Path) -> dict[str, Any]:
    """Load a trace with HolisticTraceAnalysis and break its time down; return what that took."""
    file = Path(file).resolve()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-c", _PROGRAM, str(file)]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    last = run.stdout.strip().splitlines()[-1:]
    if run.returncode != 0 or not last:
        why = "\n".join(run.stderr.strip().splitlines()[-3:])
        raise DeltacellError(f"HolisticTraceAnalysis did not read {file}: {why}")
    return dict(json.loads(last[0]))


_PROGRAM = """
import json, resource, sys, time
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
loaded = time.perf_counter()
frame = analysis.get_temporal_breakdown(visualize=False)
end = time.perf_counter()
processes = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
peak = max(resource.getrusage(process).ru_maxrss for process in processes)
row = {key: float(value) for key, value in frame.iloc[0].items()}
took = {"load_s": loaded - begin, "total_s": end - begin, "peak_mib": peak / 1024}
print(json.dumps({**took, "breakdown": row}))
"""


def _has_hta(python: Path) -> bool:
    if not python.exists():
        return False
    asked = [str(python), "-c", "import hta.trace_analysis"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _done(command: list[str], what: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        why = "\n".join(run.stderr.strip().splitlines()[-3:])
        raise DeltacellError(f"{what} could not be made: {why}")
