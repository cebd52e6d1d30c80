"""What reading and explaining traces costs, beside HolisticTraceAnalysis."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from deltacell.bench.process import MIB, in_own_process
from deltacell.errors import DeltacellError, InputError
from deltacell.files import new_file
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
    from deltacell.bench.trace import measure_hta

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


SIZES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_size(text: str) -> int:
    """Return the bytes that ``100MB``, ``1.5 GiB`` or ``1000`` means."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not found or (unit := found[2].lower() or "b") not in SIZES:
        raise InputError(
            f"'{text}' is not a size", fix="Expected a number and a unit, such as 100MB or 1GB."
        )
    return round(float(found[1]) * SIZES[unit])


def make_trace(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    size: int,
    *,
    progress: Progress | None = None,
) -> int:
    """Write a trace of about a size and return its number of events.

    Each copy of the source's events is as much later as the source is long, and the numbers that
    join events (correlation, external, flow, sequence and Python ids, steps) go on counting.
    """
    path = Path(path)
    about, events = _load(Path(source))
    tile = _Tile.of(events)
    written = count = copies = 0
    try:
        with new_file(path) as temporary, _open(temporary, path.suffix == ".gz") as out:
            head = msgspec.json.encode(about)[:-1] + (b"," if about else b"")
            written += out.write(head + b'"traceEvents":[\n')
            while written < size or not copies:
                for text in tile.copy(copies):
                    written += out.write((b",\n" if count else b"") + text)
                    count += 1
                copies += 1
                if progress is not None:
                    progress(f"writing {path.name}", min(written, size), size)
            out.write(b"\n]}\n")
    except OSError as error:
        raise InputError(
            f"the trace cannot be written: {error.strerror or error}", where=path
        ) from error
    return count


def find_real_trace() -> Path:
    """Return the real trace that benchmarks repeat, where this is a checkout that has the files."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        real = root.parent / "shared" / "data" / "traces" / "ddp_a100_rank0of2.json.gz"
        if real.is_file():
            return real
    raise InputError(
        "which trace to repeat is not known", fix="Name a real one, of a GPU, with --from."
    )


@dataclass(frozen=True)
class _Tile:
    """Events of a source, and by how much each number grows from a copy to the next."""

    once: Sequence[Mapping[str, Any]]
    again: Sequence[Mapping[str, Any]]
    span: float
    steps: Mapping[str, int]

    @staticmethod
    def of(events: Sequence[Mapping[str, Any]]) -> _Tile:
        # The profiler's own span and the marks around it are there once, and so are the names.
        again = [e for e in events if e.get("cat") != "Trace" and e["ph"] in "XBEsf" and "ts" in e]
        once = [e for e in events if e["ph"] == "M"]
        if not again:
            raise InputError("the trace to repeat has no events")
        begin = min(e["ts"] for e in again)
        end = max(e["ts"] + e.get("dur", 0) for e in again)
        steps: dict[str, int] = {}
        for event in again:
            for key, value in _numbers(event):
                steps[key] = max(steps.get(key, 0), value)
        return _Tile(once, again, end - begin + 100, {key: top + 1 for key, top in steps.items()})

    def copy(self, number: int) -> Iterator[bytes]:
        if number == 0:
            yield from (msgspec.json.encode(event) for event in self.once)
        for event in self.again:
            yield msgspec.json.encode(self._later(event, number))

    def _later(self, event: Mapping[str, Any], number: int) -> dict[str, Any]:
        later = dict(event)
        later["ts"] = round(event["ts"] + self.span * number, 3)
        if "id" in event and isinstance(event["id"], int):
            later["id"] = event["id"] + self.steps["id"] * number
        if isinstance(args := event.get("args"), Mapping):
            shifted = {
                key: args[key] + self.steps[_COUNTS_WITH[key]] * number
                for key in _COUNTS_WITH
                if isinstance(args.get(key), int) and args[key] >= 0
            }
            later["args"] = {**args, **shifted}
        if step := _STEP.fullmatch(str(event.get("name"))):
            later["name"] = f"{step[1]}{int(step[2]) + self.steps['step'] * number}"
        return later


_STEP = re.compile(r"(ProfilerStep#)([0-9]+)")
# Ids that name the same thing under several keys grow by the same number.
_COUNTS_WITH = {
    "correlation": "id",
    "External id": "id",
    "external id": "id",
    "Ev Idx": "Ev Idx",
    "Python id": "Python id",
    "Python parent id": "Python id",
    "Sequence number": "Sequence number",
    "Record function id": "Record function id",
}


def _numbers(event: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if isinstance(event.get("id"), int):
        yield "id", event["id"]
    if step := _STEP.fullmatch(str(event.get("name"))):
        yield "step", int(step[2])
    if isinstance(args := event.get("args"), Mapping):
        for key, counter in _COUNTS_WITH.items():
            if isinstance(args.get(key), int):
                yield counter, args[key]


def _load(source: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        read = source.read_bytes()
        text = gzip.decompress(read) if read[:2] == b"\x1f\x8b" else read
        whole = msgspec.json.decode(text)
        events = [e for e in whole["traceEvents"] if isinstance(e, dict) and "ph" in e]
    except OSError as error:
        raise InputError(
            f"the trace to repeat cannot be read: {error.strerror or error}", where=source
        ) from error
    except (msgspec.DecodeError, EOFError, KeyError, TypeError) as error:
        raise InputError(
            "this is not a whole trace, so it is not repeated", where=source
        ) from error
    return {key: value for key, value in whole.items() if key != "traceEvents"}, events


def _open(path: Path, packed: bool) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path, "wb", compresslevel=3) if packed else path.open("wb", buffering=1 << 20)
