"""Read traces of PyTorch's profiler, of any version since 1.8: of one process or of all ranks."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeGuard

from deltacell.base.errors import InputError
from deltacell.base.text import Progress, count_text
from deltacell.profile.trace.clock import without_jumps
from deltacell.profile.trace.decode import BETWEEN, Decoder, EventTable
from deltacell.profile.trace.trace import SAMPLES_PER_STEP, Kind, Thread, Trace, merge_cycles


def read_trace(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Trace:
    """Read the trace of one process: a Chrome trace as PyTorch writes it, plain or gzip.

    The file is read in pieces, so memory holds the columns and a few megabytes of text. Large plain
    files are read by up to four processes. Problems that do not prevent reading become warnings.
    """
    path = Path(path)
    try:
        decoder, table = _read_in_parts(path, progress) or _read(Decoder(path), progress)
    except OSError as error:
        message = f"the trace cannot be read: {error.strerror or error}"
        raise InputError(message, code="unreadable-file", where=path) from error
    fields = table.finish()
    table.left_out["damaged"] += decoder.lost
    notices = tuple(_warnings(decoder, table))
    if not len(fields["begin"]):
        fix = " ".join(notices) or "Check the profiler's schedule and record again."
        message = "the trace has no event with a duration"
        raise InputError(message, code="no-events", where=path, fix=fix)
    times = without_jumps(fields["begin"], fields["duration"])
    fields["begin"] = times.begin
    fields["duration"] = times.duration
    metadata = decoder.about
    fields["origin"] += _int(metadata, "baseTimeNanoseconds") or 0
    version = metadata.get("pytorch_version") or metadata.get("torch_version")
    distributed = metadata.get("distributedInfo")
    return Trace(
        **fields,
        path=path,
        rank=_rank(distributed, path.name),
        world_size=_int(distributed, "world_size"),
        torch_version=str(version) if version else None,
        device_name=_device_name(metadata, fields["threads"]),
        settings={key: bool(metadata[key]) for key in _SETTINGS if key in metadata},
        warnings=(*notices, *(_jump_notice(seconds / 1e9) for seconds in times.removed)),
        samples_per_step=_samples(metadata),
        damage=_damage(decoder, table),
        text_bytes=decoder.given,
    )


_SETTINGS = ("record_shapes", "with_stack", "profile_memory")


def _rank(distributed: object, file: str) -> int | None:
    """Return the rank of a process, from its metadata or else from the name of the file."""
    rank = _int(distributed, "rank")
    by_name = _RANK.search(file)
    return int(by_name[1]) if rank is None and by_name else rank


def _device_name(metadata: Mapping[str, object], threads: Iterable[Thread]) -> str | None:
    """Return the name of a device in the metadata, of one with events if there is one."""
    listed = metadata.get("deviceProperties")
    devices = [entry for entry in listed if isinstance(entry, dict)] if _is_list(listed) else []
    numbers = {thread.device for thread in threads}
    devices.sort(key=lambda device: device.get("id") not in numbers)
    return next((str(device["name"]) for device in devices if "name" in device), None)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _damage(decoder: Decoder, table: EventTable) -> str:
    """Return why events are missing, if any are."""
    if decoder.cut or decoder.damage:
        return "the file is cut off"
    n_left_out = table.left_out.total()
    return f"{count_text(n_left_out, 'event')} could not be read" if n_left_out else ""


def _samples(about: Mapping[str, Any]) -> float | None:
    """Return the samples per step that a program has added to its trace; None if it has not."""
    recorded = about.get(SAMPLES_PER_STEP, 0)
    try:
        samples = float(recorded)
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
        message = f"none of its {len(files)} files is a trace"
        raise InputError(message, code="not-a-trace", where=path, fix=" ".join(notices))
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
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts = [_range_text(consecutive) for consecutive in ranges]
    n_left_out = len(texts) - MOST_RANGES
    more = f" and {n_left_out} more" if n_left_out > 0 else ""
    return ", ".join(texts[:MOST_RANGES]) + more


MOST_RANGES = 8  # ranges of ranks that a notice lists


def _range_text(consecutive: Sequence[int]) -> str:
    if len(consecutive) > 2:
        return f"{consecutive[0]} to {consecutive[-1]}"
    return ", ".join(map(str, consecutive))


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
    parts = _parts(path)
    n_readers = _n_readers()
    if n_readers == 1 or len(parts) < n_readers:
        return None
    readers: list[_Reader] = []
    table = EventTable()
    metadata = dict[str, Any]()
    n_bytes = 0
    try:
        for first in range(n_readers):
            readers.append(_Reader.start(parts[first::n_readers]))
        for number, part in enumerate(parts):
            decoder, later = readers[number % n_readers].receive()
            table.join(later)
            metadata |= decoder.about
            n_bytes += decoder.given
            if progress is not None:
                progress(f"reading {path.name}", n_bytes, parts[-1].begin)
            is_damaged = decoder.lost or decoder.repaired or decoder.cut
            ends_in_place = decoder.closed == (part.end is None)
            if is_damaged or "traceEvents" not in metadata or not ends_in_place:
                return None
    except EOFError:
        return None
    finally:
        for reader in readers:
            reader.stop()
    decoder.about = metadata
    decoder.given = n_bytes
    return decoder, table


def _n_readers() -> int:
    """Return how many processes can read a file together."""
    is_daemon = multiprocessing.current_process().daemon
    if not hasattr(os, "sched_getaffinity") or is_daemon:
        return 1
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class _Reader:
    """A process that reads parts of a file and sends them back."""

    process: BaseProcess
    receiver: Connection

    @classmethod
    def start(cls, parts: Sequence[Decoder]) -> _Reader:
        fork = multiprocessing.get_context("fork")
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=_send, args=(receiver, sender, parts), daemon=True)
        with warnings.catch_warnings():
            # The child uses neither locks nor threads of this process.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        sender.close()
        return cls(process, receiver)

    def receive(self) -> tuple[Decoder, EventTable]:
        """Return the next part; raise EOFError if the process has failed."""
        part: tuple[Decoder, EventTable] = self.receiver.recv()
        return part

    def stop(self) -> None:
        """End the process, whether it has finished or not."""
        self.receiver.close()
        self.process.kill()
        self.process.join()


def _send(back: Connection, to: Connection, parts: Sequence[Decoder]) -> None:
    # Without another reader, sending fails once the parent has exited.
    back.close()
    with suppress(Exception):
        for part in parts:
            to.send(_read(part))


def _parts(path: Path) -> list[Decoder]:
    """Return the parts of a large plain file, which begin between two events if that is seen."""
    begins = [0]
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Neither packed nor a list without an object around it.
        is_plain = file.read(64).lstrip().startswith(b"{")
        places = range(PART, size, PART) if is_plain and size >= 4 * PART else ()
        for place in places:
            file.seek(place)
            comma = BETWEEN.search(file.read(1 << 20))
            if comma:
                begins.append(place + comma.end(1))
    begins = sorted(set(begins))
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


def _int(metadata: object, key: str) -> int | None:
    """Return a number in metadata; None if there is none, or something else in its place."""
    value = metadata.get(key) if isinstance(metadata, Mapping) else None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number else None


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError("no such file or directory", code="missing-file", where=path)
    if not path.is_dir():
        return [path]
    folder = path / "traces" if (path / "traces").is_dir() else path
    files = [file for file in sorted(folder.iterdir()) if _may_be_trace(file)]
    if not files:
        message = "no file in this directory ends in .json or .json.gz"
        raise InputError(message, code="no-trace", where=folder)
    return files


def _may_be_trace(path: Path) -> bool:
    has_suffix = path.name.endswith((".json", ".json.gz"))
    return has_suffix and path.is_file() and not path.name.startswith(".")


def _check_recorded(trace: Trace) -> None:
    is_step = trace.named(lambda name: name.startswith("ProfilerStep"))
    if ((trace.kind != Kind.other) & ~is_step).any():
        return
    message = "the profiler recorded no operation besides its steps"
    if trace.strange:
        categories = ", ".join(f"'{name}'" for name in list(trace.strange)[:3])
        message = f"this Chrome trace is not of PyTorch's profiler: its events are of {categories}"
    fix = "Check the profiler's activities and schedule and record again."
    raise InputError(message, code="nothing-recorded", where=trace.path, fix=fix)


def _check_one_run(groups: Mapping[int | None, Sequence[Trace]], path: Path) -> None:
    traces = list(chain(*groups.values()))
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    are_ranks_known = None not in groups or len(groups) == 1
    if are_ranks_known and len(sizes) < 2 and all(map(_are_cycles, groups.values())):
        return
    ranks = ", ".join(f"{t.path.name} is rank {t.rank} of {t.world_size}" for t in traces[:4])
    message = f"the {len(traces)} traces of this directory are not from one run"
    fix = f"{ranks.replace('None', '?')}: give one file, or separate the runs."
    raise InputError(message, code="not-one-run", where=path, fix=fix)


def _are_cycles(traces: Sequence[Trace]) -> bool:
    """Return whether traces of one rank follow each other and share threads of the host."""
    for trace, later in pairwise(traces):
        end = trace.origin + int((trace.begin + trace.duration).max())
        if end > later.origin:
            return False
    threads = [_host_threads(trace) for trace in traces]
    return all(threads[0] & of_later for of_later in threads[1:])


def _host_threads(trace: Trace) -> set[tuple[str, str]]:
    return {(thread.pid, thread.tid) for thread in trace.threads if not thread.is_device}
