"""What is to be explained: a run of this program, a trace, or the traces of several ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account
from deltacell.profile.explain.run_account import (
    RunTimes,
    run_account,
    run_facts,
    run_name,
    run_times,
)
from deltacell.profile.explain.trace_account import attributed, trace_account
from deltacell.profile.record import RUN_FILE, TRACES, read_run
from deltacell.profile.trace.attribution import RanksAttribution

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
    traces
        Where the time of its traces goes; None where there are none.
    """

    path: Path
    account: Account
    run: RunTimes | None = None
    traces: RanksAttribution | None = None

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
    """Read what is to be explained."""
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
        return _open_run(folder, run_name(folder) if name is None else name, progress)
    traces = attributed(path, progress)
    return Subject(path, trace_account(traces, called), traces=traces)


def _open_run(path: Path, name: str, progress: Progress | None) -> Subject:
    record = read_run(path)
    times = run_times(record)
    traces = attributed(path, progress) if _has_traces(path) else None
    if times.summary.steps or traces is None:
        return Subject(path, run_account(times, name), times, traces)
    account = trace_account(traces, name)
    told = {name: value for name, value in account.facts.items() if value is not None}
    facts = {**run_facts(record), **told, "steps of an epoch": record.steps_per_epoch}
    return Subject(path, replace(account, facts=facts), None, traces)


def _has_traces(path: Path) -> bool:
    folder = path / TRACES
    return folder.is_dir() and any(file.suffix in (".json", ".gz") for file in folder.iterdir())
