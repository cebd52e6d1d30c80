"""Read traces of PyTorch's profiler, of any version since 1.8: of one process or of all ranks."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby, zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deltacell.base.errors import InputError
from deltacell.base.text import Progress, count_text
from deltacell.profile.trace.clock import without_jumps
from deltacell.profile.trace.decode import BETWEEN, Decoder, EventTable
from deltacell.profile.trace.trace import SAMPLES_PER_STEP, Kind, Trace, merge_cycles


def read_trace(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Trace:
    """Read the trace of one process: a Chrome trace as PyTorch writes it, plain or gzip.

    The file is read in pieces, so memory holds the columns and a few megabytes of text. Large plain
    files are read by up to four processes. Problems that do not prevent reading become warnings.
    """
    path = Path(path)
    try:
        decoder, table = _read_in_parts(path, progress) or _read(Decoder(path), progress)
    except OSError as error:
        what = f"the trace cannot be read: {error.strerror or error}"
        raise InputError(what, code="unreadable-file", where=path) from error
    fields = table.finish()
    table.left_out["damaged"] += decoder.lost
    notices = tuple(_warnings(decoder, table))
    if not len(fields["begin"]):
        fix = " ".join(notices) or "Check the profiler's schedule and record again."
        what = "the trace has no event with a duration"
        raise InputError(what, code="no-events", where=path, fix=fix)
    times = without_jumps(fields["begin"], fields["duration"])
    fields |= {"begin": times.begin, "duration": times.duration}
    notices += tuple(_jump_notice(seconds / 1e9) for seconds in times.removed)
    metadata = decoder.about
    fields["origin"] += _int(metadata, "baseTimeNanoseconds") or 0
    settings = ("record_shapes", "with_stack", "profile_memory")
    listed = metadata.get("deviceProperties")
    devices = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
    seen = {thread.device for thread in fields["threads"]}
    devices.sort(key=lambda device: device.get("id") not in seen)
    damage = f"{count_text(n, 'event')} could not be read" if (n := table.left_out.total()) else ""
    version = metadata.get("pytorch_version") or metadata.get("torch_version")
    distributed = metadata.get("distributedInfo")
    by_name = _RANK.search(path.name)
    rank = _int(distributed, "rank")
    return Trace(
        **fields,
        path=path,
        rank=int(by_name[1]) if rank is None and by_name else rank,
        world_size=_int(distributed, "world_size"),
        torch_version=str(version) if version else None,
        device_name=next((str(device["name"]) for device in devices if "name" in device), None),
        settings={key: bool(metadata[key]) for key in settings if key in metadata},
        warnings=notices,
        samples_per_step=_samples(metadata),
        damage="the file is cut off" if decoder.cut or decoder.damage else damage,
        text_bytes=decoder.given,
    )


def _samples(about: Mapping[str, Any]) -> float | None:
    """Return the samples per step that a program has added to its trace; None if it has not."""
    try:
        samples = float(about.get(SAMPLES_PER_STEP, 0))
    except (TypeError, ValueError):
        return None
    return samples if 0 < samples < math.inf else None


def read_traces(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Trace]:
    """Read the traces of all ranks of one run, by rank.

    The warnings of every trace list missing ranks. Several profiler cycles of a rank are merged.
    """
    path = Path(path)
    files = _find(path)
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
            notices.append(f"{file.name} was left out: {error.message}.")
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
    """Return a notice of the ranks without a trace, or nothing if none is missing."""
    sizes = [trace.world_size for trace in traces if trace.world_size is not None]
    ranks = {trace.rank for trace in traces if trace.rank is not None}
    size = max([*sizes, *(rank + 1 for rank in ranks)], default=0)
    if not ranks or len(ranks) >= size:
        return []
    missing = set(range(size)) - ranks
    return [f"Traces of {len(missing)} of {size} ranks are missing: {_ranges(missing)}."]


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text, consecutive ones as a range: ``0, 2 to 5``."""
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    texts = [f"{x[0]} to {x[-1]}" if len(x) > 2 else ", ".join(map(str, x)) for x in runs]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


def _read(decoder: Decoder, progress: Progress | None = None) -> tuple[Decoder, EventTable]:
    table = EventTable()
    for piece in decoder.pieces(progress):
        table.add(*piece)
        del piece
    return decoder, table


PART = 4 << 20  # bytes that a process reads at a time; smaller files are read by one process


def _read_in_parts(path: Path, progress: Progress | None) -> tuple[Decoder, EventTable] | None:
    """Read a large plain file with one process per core; None if a single process has to read it.

    Each of n processes reads every n-th part. After a part that is damaged or does not end between
    two events, the other parts cannot be trusted.
    """
    can_fork = hasattr(os, "sched_getaffinity") and not multiprocessing.current_process().daemon
    n = min(4, len(os.sched_getaffinity(0))) if can_fork else 1
    parts = _parts(path)
    if n == 1 or len(parts) < n:
        return None
    fork = multiprocessing.get_context("fork")
    children = list[tuple[Any, Any]]()
    table = EventTable()
    metadata = dict[str, Any]()
    n_bytes = 0
    try:
        for first in range(n):
            pipe = receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=_send, args=(*pipe, parts[first::n]), daemon=True)
            with warnings.catch_warnings():
                # The child uses neither locks nor threads of this process.
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            sender.close()
            children.append((child, receiver))
        for number, part in enumerate(parts):
            decoder, later = children[number % n][1].recv()
            table.join(later)
            metadata |= decoder.about
            n_bytes += decoder.given
            if progress is not None:
                progress(f"reading {path.name}", n_bytes, parts[-1].begin)
            is_damaged = decoder.lost or decoder.repaired or decoder.cut
            if is_damaged or "traceEvents" not in metadata or decoder.closed != (part.end is None):
                return None
    except EOFError:
        return None
    finally:
        for child, receiver in children:
            receiver.close()
            child.kill()
            child.join()
    decoder.about = metadata
    decoder.given = n_bytes
    return decoder, table


def _send(back: Connection, to: Connection, parts: Sequence[Decoder]) -> None:
    # Without another reader, sending fails once the parent has exited.
    back.close()
    with suppress(Exception):
        for part in parts:
            to.send(_read(part))


def _parts(path: Path) -> list[Decoder]:
    places = {0}
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Neither packed nor a list without an object around it.
        is_plain = file.read(64).lstrip().startswith(b"{")
        for place in range(PART, size, PART) if is_plain and size >= 4 * PART else ():
            file.seek(place)
            if comma := BETWEEN.search(file.read(1 << 20)):
                places.add(place + comma.end(1))
    begins = sorted(places)
    return [Decoder(path, *bounds) for bounds in zip_longest(begins, begins[1:])]


def _warnings(decoder: Decoder, table: EventTable) -> Iterator[str]:
    if decoder.cut or decoder.damage:
        why = f" ({decoder.damage})" if decoder.damage else ""
        yield f"The file is cut off{why}; everything before the cut was read."
    if decoder.repaired:
        yield "The file has characters or numbers that JSON does not allow; they were corrected."
    if decoder.unclear:
        yield "The file's metadata could not be decoded completely."
    for why, count in table.left_out.items():
        if count:
            yield f"{count_text(count, 'event was', 'events were')} left out: {why}."


def _jump_notice(seconds: float) -> str:
    return (
        f"The clock jumped: nothing begins or ends for {seconds:,.0f} s, many times longer than "
        "the rest of the trace. This time was left out."
    )


_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[_-]?(\d{1,7})(?![0-9])", re.I)


def _int(said: Any, key: str) -> int | None:
    value = said.get(key) if isinstance(said, Mapping) else None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError("no such file or directory", code="missing-file", where=path)
    if not path.is_dir():
        return [path]
    folder = path / "traces" if (path / "traces").is_dir() else path
    files = [f for f in sorted(folder.iterdir()) if f.name.endswith((".json", ".json.gz"))]
    if not (files := [f for f in files if f.is_file() and f.name[0] != "."]):
        what = "no file in this directory ends in .json or .json.gz"
        raise InputError(what, code="no-trace", where=folder)
    return files


def _check_recorded(trace: Trace) -> None:
    is_step = trace.named(lambda name: name.startswith("ProfilerStep"))
    if ((trace.kind != Kind.other) & ~is_step).any():
        return
    what = "the profiler recorded no operation besides its steps"
    if trace.strange:
        categories = ", ".join(f"'{name}'" for name in list(trace.strange)[:3])
        what = f"this Chrome trace is not of PyTorch's profiler: its events are of {categories}"
    fix = "Check the profiler's activities and schedule and record again."
    raise InputError(what, code="nothing-recorded", where=trace.path, fix=fix)


def _check_one_run(groups: Mapping[int | None, Sequence[Trace]], path: Path) -> None:
    traces = list(chain(*groups.values()))
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    known = None not in groups or len(groups) == 1
    if known and len(sizes) < 2 and all(map(_are_cycles, groups.values())):
        return
    ranks = ", ".join(f"{t.path.name} is rank {t.rank} of {t.world_size}" for t in traces[:4])
    what = f"the {len(traces)} traces of this directory are not from one run"
    fix = f"{ranks.replace('None', '?')}: give one file, or separate the runs."
    raise InputError(what, code="not-one-run", where=path, fix=fix)


def _are_cycles(traces: Sequence[Trace]) -> bool:
    threads = [{(t.pid, t.tid) for t in trace.threads if not t.is_device} for trace in traces]
    ends = [trace.origin + int((trace.begin + trace.duration).max()) for trace in traces]
    follow = all(end <= later.origin for end, later in zip(ends, traces[1:], strict=False))
    return follow and all(threads[0] & other for other in threads[1:])
