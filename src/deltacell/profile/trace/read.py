"""Reading traces of PyTorch's profiler, of any version since 1.8: one process, or all ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.arrays import Ints
from deltacell.errors import InputError
from deltacell.profile.trace.columns import Table
from deltacell.profile.trace.decode import Decoder, Source
from deltacell.profile.trace.trace import NOTHING, Kind, Trace
from deltacell.words import Progress, count_text


def read_trace(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Trace:
    """Read the trace of one process: a Chrome trace as PyTorch writes it, plain or gzip.

    It is read in pieces, so that memory holds the columns and a few megabytes of text. What is
    wrong with the file and can be read around is in the trace's warnings.
    """
    path = Path(path)
    table = Table()
    with Source(path, progress) as source:
        decoder = Decoder(source)
        for piece in decoder.pieces():
            table.add(piece)
        grown = source.grown()
    fields = table.finish()
    table.left_out["not valid JSON"] += decoder.lost
    warnings = _warnings(decoder, table, grown)
    if not table.n:
        raise InputError(
            "the trace has no event with a duration",
            code="no-events",
            where=path,
            fix=" ".join(warnings) or "Check the profiler's schedule, and record again.",
        )
    about = decoder.about
    fields["origin"] += _int(about, "baseTimeNanoseconds") or 0
    settings: dict[str, Any] = {
        key: bool(about[key])
        for key in ("record_shapes", "with_stack", "profile_memory")
        if key in about
    }
    listed = about.get("deviceProperties")
    devices = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
    devices.sort(key=lambda device: device.get("id") not in table.devices)
    damage = f"{count_text(n, 'event')} could not be read" if (n := table.left_out.total()) else ""
    version = about.get("pytorch_version") or about.get("torch_version")
    rank, world_size = _rank(about, path)
    return Trace(
        **fields,
        path=path,
        rank=rank,
        world_size=world_size,
        torch_version=str(version) if version else None,
        device_name=next((str(device["name"]) for device in devices if "name" in device), None),
        settings=settings,
        warnings=warnings,
        damage="the file is cut off" if decoder.cut or source.damage else damage,
        text_bytes=source.given,
    )


def read_traces(
    path: str | os.PathLike[str], *, window: int | None = None, progress: Progress | None = None
) -> list[Trace]:
    """Read the traces of all ranks of one run, by rank.

    Missing ranks are named in the warnings of every trace. Several profiler cycles of a rank are
    read as one trace.
    """
    path = Path(path)
    files = _find(path, window)
    notices: list[str] = []
    traces: list[Trace] = []
    for file in files:
        try:
            trace = read_trace(file, progress=progress)
            _check_recorded(trace)
            traces.append(trace)
        except InputError as error:
            if len(files) == 1:
                raise
            notices.append(f"{file.name} was left out: {error.what}.")
    if not traces:
        what = f"none of its {len(files)} files is a trace"
        raise InputError(what, code="not-a-trace", where=path, fix=" ".join(notices))
    groups: dict[int | None, list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: trace.origin):
        groups.setdefault(trace.rank, []).append(trace)
    _check_one_run(groups, path)
    ranks = sorted(groups, key=lambda rank: (rank is None, rank or 0))
    merged = [merge_cycles(groups[rank]) for rank in ranks]
    notices += missing_ranks(merged)
    return [replace(trace, warnings=(*trace.warnings, *notices)) for trace in merged]


def missing_ranks(traces: Sequence[Trace]) -> list[str]:
    """Return a sentence that names the missing ranks, if any."""
    sizes = [trace.world_size for trace in traces if trace.world_size is not None]
    ranks = {trace.rank for trace in traces if trace.rank is not None}
    size = max([*sizes, *(rank + 1 for rank in ranks)], default=0)
    if not ranks or len(ranks) >= size:
        return []
    missing = listed(set(range(size)) - ranks)
    verb = "is" if len(ranks) == 1 else "are"
    return [f"Of {size} ranks only {listed(ranks)} {verb} here; missing: {missing}."]


def listed(numbers: Iterable[int], most: int = 8) -> str:
    """Return numbers as text, consecutive ones as a range: ``0, 2 to 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" * (len(texts) > most))


def _warnings(decoder: Decoder, table: Table, grown: int) -> tuple[str, ...]:
    damage = decoder.source.damage
    said = []
    if decoder.cut or damage:
        why = f" ({damage})" if damage else ""
        said.append(f"The file is cut off{why}: what stands before the cut was read.")
    if grown:
        change = f"grew by {grown:,}" if grown > 0 else f"lost {-grown:,}"
        said.append(f"The file {change} bytes while it was read: read it again when complete.")
    if decoder.repaired:
        said.append("The file has characters or numbers that JSON does not allow: corrected.")
    if decoder.unclear:
        said.append("The file's description of itself could not be decoded completely.")
    said += [
        f"{count_text(count, 'event was', 'events were')} left out: {why}."
        for why, count in table.left_out.items()
        if count
    ]
    return tuple(said)


_RANK = re.compile(
    r"(?<![a-z])(?:rank|worker)[_-]?(\d{1,7})(?:[_-]?of[_-]?(\d{1,7}))?(?![0-9])", re.I
)
_WORLD = re.compile(r"(?<![a-z])world(?:_?size)?[_-]?(\d{1,7})(?![0-9])", re.I)
_WINDOW = re.compile(r"(?<![a-z])window[_-]?(\d{1,9})(?![0-9])", re.I)


def _rank(about: Mapping[str, Any], path: Path) -> tuple[int | None, int | None]:
    said = about.get("distributedInfo")
    rank, world_size = _int(said, "rank"), _int(said, "world_size")
    by_name, by_world = _RANK.search(path.name), _WORLD.search(path.name)
    if rank is None and by_name:
        rank = int(by_name[1])
    if world_size is None and by_name and by_name[2]:
        world_size = int(by_name[2])
    elif world_size is None and by_world:
        world_size = int(by_world[1])
    return rank, world_size


def _int(said: Any, key: str) -> int | None:
    value = said.get(key) if isinstance(said, Mapping) else None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_recorded(trace: Trace) -> None:
    is_step = trace.named(lambda name: name.startswith("ProfilerStep"))
    if ((trace.kind != Kind.other) & ~is_step).any():
        return
    if trace.strange:
        told = ", ".join(f"'{name}'" for name in list(trace.strange)[:3])
        raise InputError(
            f"this Chrome trace is not of PyTorch's profiler: its events are of {told}",
            code="not-of-pytorch",
            where=trace.path,
            fix="Expected a trace as written by torch.profiler's export_chrome_trace.",
        )
    raise InputError(
        "the profiler recorded no operation beside its steps",
        code="nothing-recorded",
        where=trace.path,
        fix="Check the profiler's activities and schedule, and record again.",
    )


def _find(path: Path, window: int | None) -> list[Path]:
    if not path.exists():
        raise InputError("no such file or directory", code="missing-file", where=path)
    if not path.is_dir():
        return [path]
    folder = path / "traces" if (path / "traces").is_dir() else path
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        what = f"the directory cannot be read: {error.strerror or error}"
        raise InputError(what, code="unreadable-file", where=folder) from error
    files = [f for f in files if f.name.endswith((".json", ".json.gz")) and f.name[0] != "."]
    if window is not None:
        windows = [(file, _WINDOW.search(file.name)) for file in files]
        files = [file for file, found in windows if found and int(found[1]) == window]
    if not (files := [file for file in files if file.is_file()]):
        of_window = "" if window is None else f" of window {window}"
        raise InputError(
            f"this directory has no trace{of_window}",
            code="no-trace",
            where=folder,
            fix="Expected files that end in .json or .json.gz.",
        )
    return files


def _check_one_run(groups: Mapping[int | None, Sequence[Trace]], path: Path) -> None:
    traces = [trace for group in groups.values() for trace in group]
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    twice = [group for group in groups.values() if not _are_cycles(group)]
    if None in groups and (len(groups) > 1 or twice):
        why = f"no rank is known of {_some(groups[None])}"
    elif len(sizes) > 1:
        why = f"they were recorded with {' and '.join(str(n) for n in sorted(sizes))} ranks"
    elif twice:
        why = f"{_some(twice[0])} are all of rank {twice[0][0].rank}, and not of one process"
    else:
        return
    raise InputError(
        f"the {len(traces)} traces of this directory are not one run's: {why}",
        code="not-one-run",
        where=path,
        fix="Name one of the files, or put the ranks of one run in a directory of their own.",
    )


def _some(traces: Sequence[Trace]) -> str:
    names = [trace.path.name for trace in traces]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _are_cycles(traces: Sequence[Trace]) -> bool:
    threads = [{(t.pid, t.tid) for t in trace.threads if not t.is_device} for trace in traces]
    ends = [trace.origin + int((trace.begin + trace.duration).max()) for trace in traces]
    follow = all(end <= later.origin for end, later in zip(ends, traces[1:], strict=False))
    return follow and all(threads[0] & other for other in threads[1:])


def merge_cycles(cycles: Sequence[Trace]) -> Trace:
    """Return the profiler cycles of one rank, given by time, as one trace."""
    first = cycles[0]
    if len(cycles) == 1:
        return first
    tables: dict[str, dict[Any, int]] = {
        name: {} for name in ("names", "threads", "stacks", "shapes")
    }
    columns: dict[str, list[Any]] = {}
    memory: dict[str, list[Ints]] = {name: [] for name in first.memory}
    begins, apart = [], {"correlation": 0, "sequence": 0}
    for trace in cycles:
        shift = trace.origin - first.origin
        begins.append(shift)
        found: dict[str, Any] = {"kind": trace.kind, "duration": trace.duration}
        found["begin"] = trace.begin + shift
        for name, known in tables.items():
            codes = [known.setdefault(one, len(known)) for one in getattr(trace, name)]
            column = getattr(trace, name[:-1])
            column = column if len(column) else np.full(len(trace), NOTHING, dtype=np.int32)
            # The last place is that of no code.
            found[name[:-1]] = np.array([*codes, NOTHING], dtype=np.int32)[column]
        for name, offset in apart.items():
            column = getattr(trace, name)
            found[name] = np.where(column >= 0, column + offset, column)
            apart[name] = offset + int(column.max(initial=0)) + 1
        for name, column in found.items():
            columns.setdefault(name, []).append(column)
        for name, values in memory.items():
            if name in trace.memory:
                values.append(trace.memory[name] + (shift if name == "time" else 0))
    joined: dict[str, Any] = {
        name: np.concatenate(found).astype(getattr(first, name).dtype)
        for name, found in columns.items()
    }
    for name in ("stack", "shape"):
        if not tables[f"{name}s"]:
            joined[name] = np.empty(0, dtype=np.int32)
    said = f"{len(cycles)} profiler cycles were read as one trace."
    warnings = dict.fromkeys([w for trace in cycles for w in trace.warnings] + [said])
    joined |= {name: tuple(known) for name, known in tables.items()}
    return replace(
        first,
        **joined,
        memory={name: np.concatenate(values) for name, values in memory.items()},
        cycles=tuple(begins),
        warnings=tuple(warnings),
        damage=next((trace.damage for trace in cycles if trace.damage), ""),
        strange={k: v for trace in cycles for k, v in trace.strange.items()},
        text_bytes=sum(trace.text_bytes for trace in cycles),
    )
