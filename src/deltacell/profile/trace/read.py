"""Reading traces of PyTorch's profiler, of any version since 1.8, into columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.errors import InputError
from deltacell.profile.trace.columns import Columns, Finished
from deltacell.profile.trace.decode import Decoder, Progress, Source
from deltacell.profile.trace.trace import NOTHING, Ints, Kind, Trace
from deltacell.words import count_text


def read_trace(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Trace:
    """Read the trace of one process: a Chrome trace as PyTorch writes it, plain or gzip.

    It is read in pieces, so that memory holds the columns and a few megabytes of text. What is
    wrong with the file and can be read around is in the trace's warnings. An `InputError` is
    raised where it is not a trace, or has no event with a duration.
    """
    path = Path(path)
    columns = Columns()
    with Source(path, progress) as source:
        decoder = Decoder(source)
        for piece in decoder.pieces():
            columns.add(piece)
        grown = source.grown()
    finished = columns.finish()
    warnings = _warnings(decoder, columns, grown)
    if not finished.n:
        raise InputError(
            "the trace has no event with a duration",
            where=path,
            fix=" ".join(warnings) or "Was anything recorded? Look at the profiler's schedule.",
        )
    about = decoder.about
    rank, world_size = _rank(about, path)
    columns_of = ("names", "threads", *_COLUMNS, "memory", "stacks", "shapes")
    return Trace(
        **{name: getattr(finished, name) for name in columns_of},
        path=path,
        origin=finished.origin + (_int(about, "baseTimeNanoseconds") or 0),
        rank=rank,
        world_size=world_size,
        torch_version=_torch_version(about),
        device_name=_device_name(about, finished),
        settings=_settings(about, finished),
        warnings=warnings,
        damage=_damage(decoder, columns),
        strange=dict(columns.strange.most_common(20)),
        text_bytes=decoder.source.given,
    )


def read_traces(
    path: str | os.PathLike[str], *, window: int | None = None, progress: Progress | None = None
) -> list[Trace]:
    """Read the traces of all ranks of one run, by rank.

    Missing ranks are named in the warnings of every trace. Several profiler cycles of a rank are
    one trace. An `InputError` is raised where there is no trace, or where they are not the ranks
    of one run.

    Parameters
    ----------
    path
        A trace; a directory with one trace per rank; or a run, whose traces are in ``traces``.
    window
        Which of a run's windows; by default all.
    progress
        Called as ``progress(label, done, total)``, for each file anew.
    """
    path = Path(path)
    files = find_traces(path, window)
    notices: list[str] = []
    traces: list[Trace] = []
    for file in files:
        try:
            traces.append(_of_pytorch(read_trace(file, progress=progress)))
        except InputError as error:
            if len(files) == 1:
                raise
            notices.append(f"{file.name} was left out: {error.what}.")
    if not traces:
        raise InputError(
            f"none of its {len(files)} files is a trace", where=path, fix=" ".join(notices)
        )
    check_ranks(traces, path)
    traces = merge_cycles(traces)
    traces.sort(key=lambda trace: (trace.rank is None, trace.rank or 0))
    notices += missing_ranks(traces)
    return [replace(trace, warnings=(*trace.warnings, *notices)) for trace in traces]


def _warnings(decoder: Decoder, columns: Columns, grown: int) -> tuple[str, ...]:
    said = []
    source = decoder.source
    if decoder.cut or source.damage:
        why = f" ({source.damage})" if source.damage else ""
        said.append(f"The file is cut off{why}: what stands before the cut was read.")
    if grown:
        change = f"grew by {grown:,}" if grown > 0 else f"lost {-grown:,}"
        said.append(
            f"The file {change} bytes while it was read: what it had at first was read; "
            "read it again when it is complete."
        )
    if decoder.repaired:
        said.append("The file has characters or numbers that JSON does not allow: put right.")
    if decoder.lost:
        lost = count_text(decoder.lost, "event could", "events could")
        said.append(f"At least {lost} not be decoded and {_left_out(decoder.lost)}")
    if decoder.unclear:
        said.append("What the file says of itself beside the events could not all be decoded.")
    for number, one, many in (
        (columns.unknown, "event does not say what it is", "events do not say what they are"),
        (
            columns.without_duration,
            "event has no time or no duration",
            "events have no time or no duration",
        ),
        (columns.negative, "event has a negative duration", "events have a negative duration"),
    ):
        if number:
            said.append(f"{count_text(number, one, many)} and {_left_out(number)}")
    if columns.unpaired:
        unpaired = count_text(
            columns.unpaired,
            "beginning without an end, or end without a beginning,",
            "beginnings without an end, or ends without a beginning,",
        )
        said.append(f"{unpaired} {_left_out(columns.unpaired)}")
    return tuple(said)


def _of_pytorch(trace: Trace) -> Trace:
    is_step = trace.named(lambda name: name.startswith("ProfilerStep"))
    if ((trace.kind != Kind.other) & ~is_step).any():
        return trace
    if trace.strange:
        told = ", ".join(f"'{name}'" for name in list(trace.strange)[:3])
        raise InputError(
            f"this is a Chrome trace, but not of PyTorch's profiler: its events are of {told}",
            where=trace.path,
            fix="Expected a trace as torch.profiler's export_chrome_trace writes it.",
        )
    raise InputError(
        "the profiler recorded no operation: there is nothing in the trace beside its steps",
        where=trace.path,
        fix="Look at the profiler's activities and schedule, and record again.",
    )


def _damage(decoder: Decoder, columns: Columns) -> str:
    bad = (columns.unknown, columns.without_duration, columns.negative, columns.unpaired)
    left_out = decoder.lost + sum(bad)
    if decoder.cut or decoder.source.damage:
        return "the file is cut off"
    return f"{count_text(left_out, 'event')} could not be read" if left_out else ""


def _left_out(number: int) -> str:
    return "was left out." if number == 1 else "were left out."


_RANK = re.compile(
    r"(?<![a-z])(?:rank|worker)[_-]?(\d{1,7})(?:[_-]?of[_-]?(\d{1,7}))?(?![0-9])", re.I
)
_WORLD = re.compile(r"(?<![a-z])world(?:_?size)?[_-]?(\d{1,7})(?![0-9])", re.I)


def _rank(about: Mapping[str, Any], path: Path) -> tuple[int | None, int | None]:
    said = about.get("distributedInfo")
    said = said if isinstance(said, Mapping) else {}
    rank, world_size = _int(said, "rank"), _int(said, "world_size")
    by_name = _RANK.search(path.name)
    if rank is None and by_name:
        rank = int(by_name[1])
    if world_size is None:
        if by_name and by_name[2]:
            world_size = int(by_name[2])
        elif by_world := _WORLD.search(path.name):
            world_size = int(by_world[1])
    return rank, world_size


def _int(said: Mapping[str, Any], key: str) -> int | None:
    value = said.get(key)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _torch_version(about: Mapping[str, Any]) -> str | None:
    for key in ("pytorch_version", "torch_version"):
        if about.get(key):
            return str(about[key])
    return None


def _device_name(about: Mapping[str, Any], finished: Finished) -> str | None:
    listed = about.get("deviceProperties")
    devices = [
        device
        for device in (listed if isinstance(listed, list) else [])
        if isinstance(device, Mapping) and "name" in device
    ]
    used = [d for d in devices if "id" in d and d["id"] in finished.devices]
    return str((used or devices)[0]["name"]) if devices else None


def _settings(about: Mapping[str, Any], finished: Finished) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key in ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules"):
        if key in about:
            settings[key] = bool(about[key])
    if finished.memory_since_begin:
        settings["memory_since_begin"] = True
    if isinstance(about.get("distributedInfo"), Mapping):
        settings["distributed"] = about["distributedInfo"]
    return settings


ENDINGS = (".json", ".json.gz")
"""How the names of traces end."""


def find_traces(path: Path, window: int | None = None) -> list[Path]:
    """Return the files of a run's traces, by name."""
    if not path.exists():
        raise InputError("there is no such file or directory", where=path)
    if not path.is_dir():
        return [path]
    folder = path / "traces" if (path / "traces").is_dir() else path
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise InputError(
            f"the directory cannot be read: {error.strerror or error}", where=folder
        ) from error
    files = [folder / name for name in names if name.endswith(ENDINGS) and name[0] != "."]
    files = [file for file in files if file.is_file()]
    if not files:
        raise InputError(
            "there is no trace in this directory",
            where=folder,
            fix=f"Expected files that end in {' or '.join(ENDINGS)}.",
        )
    if window is None:
        return files
    chosen = [
        file
        for file in files
        if (found := _WINDOW.search(file.name)) is not None and int(found[1]) == window
    ]
    if not chosen:
        raise InputError(f"window {window} was asked for, and no file is of it", where=folder)
    return chosen


def check_ranks(traces: Sequence[Trace], path: Path) -> None:
    """Raise an `InputError` where the traces are not the ranks of one run."""
    if len(traces) < 2:
        return
    nameless = [trace.path.name for trace in traces if trace.rank is None]
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    groups = _by_rank(traces)
    twice = [rank for rank, group in groups.items() if not _are_cycles(group)]
    if nameless and (len(groups) > 1 or twice):
        why = f"{_some(nameless)} {'has' if len(nameless) == 1 else 'have'} no rank"
    elif len(sizes) > 1:
        why = f"they say that there were {' and '.join(str(n) for n in sorted(sizes))} ranks"
    elif twice:
        same = [trace.path.name for trace in groups[twice[0]]]
        why = f"{_some(same)} are all of rank {twice[0]}, and not of one process"
    else:
        return
    raise InputError(
        f"the {len(traces)} traces of this directory are not one run's: {why}",
        where=path,
        fix="Name one of the files, or put the ranks of one run in a directory of their own.",
    )


def _by_rank(traces: Sequence[Trace]) -> dict[int | None, list[Trace]]:
    groups: dict[int | None, list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: trace.origin):
        groups.setdefault(trace.rank, []).append(trace)
    return groups


def _are_cycles(traces: Sequence[Trace]) -> bool:
    threads = [{(t.pid, t.tid) for t in trace.threads if not t.is_device} for trace in traces]
    follow = all(one.origin + int(one.end.max()) <= other.origin for one, other in pairwise(traces))
    return follow and all(threads[0] & other for other in threads[1:])


def merge_cycles(traces: Sequence[Trace]) -> list[Trace]:
    """Return one trace of each rank: several profiler cycles of one rank are laid end to end."""
    groups = _by_rank(traces).values()
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(cycles: Sequence[Trace]) -> Trace:
    first = cycles[0]
    names: dict[Any, int] = {}
    threads: dict[Any, int] = {}
    stacks: dict[Any, int] = {}
    shapes: dict[Any, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    memory: dict[str, list[Ints]] = {name: [] for name in first.memory}
    begins, rows, apart = [], 0, {"correlation": 0, "sequence": 0}
    for trace in cycles:
        shift = trace.origin - first.origin
        begins.append(shift)
        for name, known, table in (
            ("name", names, trace.names),
            ("thread", threads, trace.threads),
            ("stack", stacks, trace.stacks),
            ("shape", shapes, trace.shapes),
        ):
            codes = [known.setdefault(one, len(known)) for one in table]
            column = getattr(trace, name)
            column = column if len(column) else np.full(len(trace), NOTHING, dtype=np.int32)
            # The last place is that of no code.
            columns[name].append(np.array([*codes, NOTHING], dtype=np.int32)[column])
        for name, offset in apart.items():
            column = getattr(trace, name)
            columns[name].append(np.where(column >= 0, column + offset, column))
            apart[name] = offset + int(column.max(initial=0)) + 1
        columns["parent"].append(np.where(trace.parent >= 0, trace.parent + rows, NOTHING))
        columns["begin"].append(trace.begin + shift)
        columns["duration"].append(trace.duration)
        columns["kind"].append(trace.kind)
        for name, values in memory.items():
            if name in trace.memory:
                values.append(trace.memory[name] + (shift if name == "time" else 0))
        rows += len(trace)
    joined: dict[str, Any] = {
        name: np.concatenate(parts).astype(getattr(first, name).dtype)
        for name, parts in columns.items()
    }
    for name, known in (("stack", stacks), ("shape", shapes)):
        joined[name] = joined[name].astype(np.int32) if known else np.empty(0, dtype=np.int32)
    said = f"{len(cycles)} profiler cycles were read as one trace."
    warnings = dict.fromkeys([w for trace in cycles for w in trace.warnings] + [said])
    return replace(
        first,
        names=tuple(names),
        threads=tuple(threads),
        stacks=tuple(stacks),
        shapes=tuple(shapes),
        memory={name: np.concatenate(values) for name, values in memory.items()},
        cycles=tuple(begins),
        warnings=tuple(warnings),
        damage=next((trace.damage for trace in cycles if trace.damage), ""),
        strange={k: v for trace in cycles for k, v in trace.strange.items()},
        text_bytes=sum(trace.text_bytes for trace in cycles),
        **joined,
    )


_COLUMNS = (
    *("name", "kind", "begin", "duration", "thread", "correlation", "sequence", "parent"),
    *("stack", "shape"),
)


def missing_ranks(traces: Sequence[Trace]) -> list[str]:
    """Return a sentence that names the ranks which are not there, or nothing."""
    sizes = [trace.world_size for trace in traces if trace.world_size is not None]
    ranks = {trace.rank for trace in traces if trace.rank is not None}
    size = max([*sizes, *(rank + 1 for rank in ranks)], default=0)
    if not ranks or len(ranks) >= size:
        return []
    missing = listed(set(range(size)) - ranks)
    verb = "is" if len(ranks) == 1 else "are"
    return [f"Of {size} ranks only {listed(ranks)} {verb} here; missing: {missing}."]


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as text, runs of them as a range: ``0, 2 to 5``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in parts]
    return ", ".join(texts[:_MANY]) + (f" and {len(texts) - _MANY} more" * (len(texts) > _MANY))


_WINDOW = re.compile(r"(?<![a-z])window[_-]?(\d{1,9})(?![0-9])", re.IGNORECASE)
_MANY = 8


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
