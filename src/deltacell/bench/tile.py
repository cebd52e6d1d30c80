"""Large traces out of a small real one: the same events again and again, later each time."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from deltacell.errors import InputError
from deltacell.files import new_file
from deltacell.words import Progress

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
