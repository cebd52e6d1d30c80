"""Which files of a directory are the traces of one run, and which ranks are missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.errors import InputError
from deltacell.profile.trace.trace import NOTHING, Ints, Trace

ENDINGS = (".json", ".json.gz")
"""Of the names of traces."""


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
    """Return whether traces are of one process, one after the other."""
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
