"""Which files of a directory are the traces of one run, and which ranks are missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from deltacell.errors import InputError
from deltacell.profile.trace.trace import Trace

ENDINGS = (".json", ".json.gz")
"""Of the names of traces."""


def find_traces(path: Path, window: int | None = None) -> tuple[list[Path], list[str]]:
    """Return the files of one window, by name, and what was left aside, in sentences.

    Parameters
    ----------
    path
        A file; a directory of traces; or a run, whose traces are in ``traces``.
    window
        Which window; the last that most ranks have where not given.
    """
    if not path.exists():
        raise InputError("there is no such file or directory", where=path)
    if not path.is_dir():
        return [path], []
    folder = path / "traces" if (path / "traces").is_dir() else path
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise InputError(
            f"the directory cannot be read: {error.strerror or error}", where=folder
        ) from error
    files = [folder / name for name in names if name.endswith(ENDINGS) and name[0] != "."]
    files = [file for file in files if file.is_file()]
    windows = {file: int(found[1]) for file in files if (found := _WINDOW.search(file.name))}
    if not files:
        raise InputError(
            "there is no trace in this directory",
            where=folder,
            fix=f"Expected files that end in {' or '.join(ENDINGS)}.",
        )
    if not windows:
        if window is not None:
            raise InputError(f"window {window} was asked for: there are no windows", where=folder)
        return files, []
    count = Counter(windows.values())
    chosen = max(count, key=lambda w: (count[w], w)) if window is None else window
    if chosen not in count:
        there = listed(count)
        raise InputError(f"there is no window {window}; there is {there}", where=folder)
    others = [w for w in count if w != chosen]
    notices = [f"Of several windows, {chosen} was read, not {listed(others)}."] if others else []
    return [file for file in files if windows.get(file) == chosen], notices


def check_ranks(traces: Sequence[Trace], path: Path) -> None:
    """Raise an `InputError` where the traces are not the ranks of one run."""
    if len(traces) < 2:
        return
    nameless = [trace.path.name for trace in traces if trace.rank is None]
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    ranks = Counter(trace.rank for trace in traces)
    twice = sorted(rank for rank, n in ranks.items() if n > 1 and rank is not None)
    if nameless:
        why = f"{_some(nameless)} {'has' if len(nameless) == 1 else 'have'} no rank"
    elif len(sizes) > 1:
        why = f"they say that there were {' and '.join(str(n) for n in sorted(sizes))} ranks"
    elif twice:
        same = [trace.path.name for trace in traces if trace.rank == twice[0]]
        why = f"{_some(same)} are all of rank {twice[0]}"
    else:
        return
    raise InputError(
        f"the {len(traces)} traces of this directory are not one run's: {why}",
        where=path,
        fix="Name one of the files, or put the ranks of one run in a directory of their own.",
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
