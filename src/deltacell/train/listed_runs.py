"""The runs of a folder side by side: their validation, and the settings in which they differ."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from deltacell.base.errors import DeltacellError, InputError
from deltacell.base.files import written
from deltacell.profile.record import RUN_FILE, read_run
from deltacell.train.places import flat_values
from deltacell.train.run_config import read_config
from deltacell.train.run_directory import ENTRIES

# Keys of the place of a run, which differ in any case.
_OF_PLACE = ("directory",)


@dataclass(frozen=True)
class ListedRun:
    """What a list of runs says of one."""

    path: Path
    name: str  # the path in the folder
    status: str  # of its record; or the error with which it cannot be read
    validation: float | None  # the best validation Pearson
    epoch: int | None  # in which it was reached
    settings: Mapping[str, object]  # of its config, by key


@dataclass(frozen=True)
class ListedRuns:
    """Runs by their validation, the best first, and the keys in which their configs differ."""

    folder: Path
    runs: Sequence[ListedRun]
    keys: Sequence[str]

    def to_table(self) -> pl.DataFrame:
        """Return a row per run; a setting that a run does not have is null."""
        columns: dict[str, list[object]] = {
            "run": [run.name for run in self.runs],
            "status": [run.status for run in self.runs],
            "validation_pearson": [run.validation for run in self.runs],
            "epoch": [run.epoch for run in self.runs],
        }
        for key in self.keys:
            columns[key] = [_text(run.settings.get(key)) for run in self.runs]
        return pl.DataFrame(columns, infer_schema_length=None)


def runs_in(folder: str | os.PathLike[str]) -> ListedRuns:
    """Return the runs in a folder and its subfolders; those inside of runs are left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("no such directory", code="no-directory", where=folder)
    runs = [_listed(path, folder) for path in _paths(folder)]
    if not runs:
        what = "the folder contains no run"
        fix = "Give the folder in which deltacell train wrote its runs, such as runs."
        raise InputError(what, code="no-runs", where=folder, fix=fix)
    # Runs without a validation come last, and equal ones are in the order of their names.
    best_first = sorted(runs, key=lambda run: (-_or_lowest(run.validation), run.name))
    return ListedRuns(folder, best_first, differing_keys([run.settings for run in runs]))


def differing_keys(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the keys whose values are not the same in all configs that could be read."""
    readable = [values for values in settings if values]
    keys = dict.fromkeys(key for values in readable for key in values)
    texts = {key: {_text(values.get(key)) for values in readable} for key in keys}
    return [key for key in keys if len(texts[key]) > 1 and key not in _OF_PLACE]


def write_runs(listed: ListedRuns, path: Path) -> None:
    """Write a list of runs as comma-separated text."""
    with written(path, "the list of runs") as temporary:
        listed.to_table().write_csv(temporary)


def _paths(folder: Path) -> list[Path]:
    """Return the run directories in a folder, which may be one itself."""
    paths = []
    for place, folders, files in os.walk(folder):
        if RUN_FILE in files:
            paths.append(Path(place))
            # Baselines and members of an ensemble are parts of their run.
            folders[:] = [name for name in folders if name not in ENTRIES]
    return sorted(paths)


def _listed(path: Path, folder: Path) -> ListedRun:
    name = str(path.relative_to(folder)) if path != folder else path.resolve().name
    try:
        record = read_run(path)
        settings = flat_values(read_config(path))
    except DeltacellError as error:
        return ListedRun(path, name, f"cannot be read: {error}", None, None, {})
    best = record.best
    return ListedRun(
        path,
        name,
        record.status.value,
        None if best is None else best.value,
        None if best is None else best.epoch,
        settings,
    )


def _or_lowest(validation: float | None) -> float:
    return -math.inf if validation is None or math.isnan(validation) else validation


def _text(value: object) -> str | None:
    return None if value is None else str(value)
