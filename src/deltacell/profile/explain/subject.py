"""What is to be explained: a run of this program, a trace, or the traces of several ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account
from deltacell.profile.explain.run_account import (
    RunTimes,
    run_account,
    run_name,
    run_times,
)
from deltacell.profile.record import RUN_FILE, TRACES, read_run

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Subject:
    """One of what is to be explained.

    Parameters
    ----------
    path
        Where it was read from.
    account
        Its time in parts that add up.
    run
        Its phases; None where it is no run of this program, or none were recorded.
    """

    path: Path
    account: Account
    run: RunTimes | None = None

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return self.account.name

    @property
    def facts(self) -> dict[str, Any]:
        """What it was, for a person to read."""
        known = {name: value for name, value in self.account.facts.items() if value is not None}
        return {"path": str(self.path), "read as": self.account.source, **known}


def open_subject(
    path: str | os.PathLike[str], *, name: str | None = None, progress: Progress | None = None
) -> Subject:
    """Read what is to be explained.

    Parameters
    ----------
    path
        A run's directory, a trace, or a directory of traces, one a rank.
    name
        What to call it; the name of the file or directory by default.
    progress
        Called with a label, what is done and what there is.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            "there is nothing here",
            where=path,
            fix="Give a run's directory, a trace (.json or .json.gz), or a directory of traces.",
        )
    called = run_name(path) if name is None else name
    folder = path.parent if path.name == RUN_FILE else path
    if (folder / RUN_FILE).is_file():
        return _open_run(folder, run_name(folder) if name is None else name)
    raise InputError("this is not a run", where=path, fix=called)


def _open_run(path: Path, name: str) -> Subject:
    times = run_times(read_run(path))
    return Subject(path, run_account(times, name), times)


def has_traces(path: Path) -> bool:
    """Return whether a run has traces."""
    folder = path / TRACES
    return folder.is_dir() and any(folder.iterdir())
