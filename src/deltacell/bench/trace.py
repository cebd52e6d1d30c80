"""Benchmark of reading and explaining traces, and large traces to run it on."""

from __future__ import annotations

import gzip
import os
import re
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from deltacell.base.errors import InputError
from deltacell.base.files import new_file
from deltacell.bench import process
from deltacell.bench.process import in_own_process, peak_mib

GB = 1000  # MB; the bars apply to traces of at least this size


def run(
    files: Sequence[Path],
    make: float | None = None,
    from_: Path | None = None,
) -> dict[str, Any]:
    """Measure reading and explaining traces, each in a separate process.

    ``events`` have a duration, and ``mb`` is the uncompressed size. ``read_s`` is the time of
    reading, and ``read_cpu_s`` its processor time in all processes; ``explain_s`` also includes the
    attribution; ``peak_mib`` is the memory of the process, including Python, and of its largest
    worker. With ``make``, a size in MB, one trace is written instead.
    """
    if make is not None:
        if len(files) != 1 or from_ is None:
            raise InputError("--make requires one output file and --from", code="one-file")
        events = make_trace(from_, files[0], round(make * 1e6))
        return {"rows": [{"name": files[0].name, "events": events, "from": from_.name}]}
    rows = []
    for number, file in enumerate(files):
        process.progress(f"measuring {file.name}", number, len(files))
        rows.append(in_own_process(measure, file=file))
    large = [row for row in rows if row["mb"] >= GB]
    measured = {}
    for name in ("read_s", "peak_mib"):
        if large:
            measured[f"{name}_per_gb"] = max(row[name] * GB / row["mb"] for row in large)
    return {"rows": rows, "measured": measured}


def measure(file: Path) -> dict[str, Any]:
    """Return the row of one trace, see `run`."""
    from deltacell.profile.trace.attribution import Attribution
    from deltacell.profile.trace.read import read_trace

    begin = time.perf_counter()
    cpu_before = sum(os.times()[:4])
    trace = read_trace(file)
    read_s = time.perf_counter() - begin
    read_cpu_s = sum(os.times()[:4]) - cpu_before
    read_mib = peak_mib() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    Attribution(trace)
    explain_s = time.perf_counter() - begin
    events = len(trace)
    return {
        "name": file.name,
        "events": events,
        "mb": trace.text_bytes / 1e6,
        "read_s": read_s,
        "read_cpu_s": read_cpu_s,
        "explain_s": explain_s,
        "events_per_s": events / explain_s,
        "read_events_per_s": events / read_s,
        "read_mib": read_mib,
        "peak_mib": max(read_mib, peak_mib()),
    }


#: Numbers that increase from copy to copy: times, steps and ids.
_MOVED = re.compile(
    rb'("ts":|ProfilerStep#|"(?:id|correlation|[Ee]xternal id|Ev Idx|Python id|Python parent id'
    rb'|Sequence number|Record function id)":)([0-9]+(?:\.[0-9]+)?)',
)


def make_trace(source: Path, path: Path, size: int) -> int:
    """Write a trace of about ``size`` bytes and return its number of events.

    Each copy of the source's events begins where the one before ends, and its steps and ids
    (correlation, external, flow, sequence and Python ids) continue those of the one before.
    """
    try:
        content = source.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        whole = msgspec.json.decode(content)
        events = [e for e in whole.pop("traceEvents") if isinstance(e, dict) and "ph" in e]
        # The profiler's own span, the marks around it and the names are written once.
        again = [e for e in events if e.get("cat") != "Trace" and e["ph"] in "XBEsf" and "ts" in e]
        span = max(e["ts"] + e.get("dur", 0) for e in again) - min(e["ts"] for e in again) + 100
    except Exception as error:
        what = f"not a complete trace with events: {error}"
        raise InputError(what, code="not-a-trace", where=source) from error
    names = [msgspec.json.encode(event) for event in events if event["ph"] == "M"]
    text = b",\n".join(map(msgspec.json.encode, again))
    later: dict[bytes, float] = {b'"ts":': span}
    numbers = [(mark, int(n)) for mark, n in _MOVED.findall(text) if mark not in later]
    later[b"ProfilerStep#"] = 1 + max((n for mark, n in numbers if b"#" in mark), default=0)
    joining = 1 + max((n for mark, n in numbers if b"#" not in mark), default=0)
    copies = 0

    def moved(match: re.Match[bytes]) -> bytes:
        """Return a number of an event as it is in the present copy."""
        mark = match[1]
        number = msgspec.json.decode(match[2]) + copies * later.get(mark, joining)
        return mark + msgspec.json.encode(round(number, 3))

    with new_file(path) as temporary, temporary.open("wb") as out:
        head = msgspec.json.encode(whole)[:-1] + (b"," if whole else b"")
        written = out.write(head + b'"traceEvents":[\n' + b",\n".join([*names, text]))
        while written < size:
            copies += 1
            process.progress(f"writing {path.name}", written, size)
            written += out.write(b",\n" + _MOVED.sub(moved, text))
        out.write(b"\n]}\n")
    return len(names) + (1 + copies) * len(again)
