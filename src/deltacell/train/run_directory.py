"""The run directory: its lock, its record and its metrics."""

from __future__ import annotations

import csv
import dataclasses
import io
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import TEMPORARY, Lock, check_no_links, locked, temporary_name, write_text
from deltacell.profile.record import (
    CHECKPOINTS,
    CONFIG_FILE,
    FIGURES,
    METRICS_FILE,
    PHASES,
    RUN_FILE,
    SPLIT,
    TENSORBOARD,
    TRACES,
    Attempt,
    RunRecord,
    Status,
    now,
    read_run,
    write_run,
)
from deltacell.profile.refitted import Refitted
from deltacell.screen import Split
from deltacell.storage import new_directory
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, TrainerConfig
from deltacell.train.places import Change
from deltacell.train.run_config import write_config

LOCK = ".lock"
ENTRIES = {
    *(LOCK, RUN_FILE, CONFIG_FILE, METRICS_FILE, SPLIT, CHECKPOINTS, PHASES, TRACES, FIGURES),
    *(TENSORBOARD, "baselines", "members", "rankings", "wandb", "mlflow"),
}
"""What a run directory may contain."""

# The record of a run has the versions of these packages, on which results may depend.
PACKAGES = (
    *("deltacell", "torch", "lightning-fabric", "lightgbm"),
    *("numpy", "polars", "pyarrow"),
)


def _versions() -> dict[str, str]:
    """Return the versions of Python and of packages; that of PyTorch names its build."""
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    versions["torch"] = str(torch.__version__)  # "2.13.0+cu130", where the metadata has "2.13.0"
    return versions


def new_path(config: Config) -> Path:
    """Return the directory of a new run: the config's, or one named by name, seed and time."""
    if config.directory is not None:
        return Path(config.directory)
    stem = Path("runs") / f"{config.name}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    path = stem
    number = 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


def create_run(
    path: Path,
    config: Config,
    command: Sequence[str] = (),
    *,
    world_size: int = 1,
    split: Split | None = None,
    refitted: Refitted | None = None,
) -> None:
    """Make a new run directory, with the first attempt running."""
    started = now()
    if (path / RUN_FILE).is_file():
        raise run_exists(path)
    record = RunRecord(
        status=Status.running,
        name=config.name,
        mode=config.mode,
        seed=config.seed,
        command=tuple(command),
        started=started,
        attempts=(Attempt(started=started, world_size=world_size),),
        versions=_versions(),
        commit=commit(),
        world_size=world_size,
        refitted=refitted,
    )
    with new_directory(path, "run") as folder:
        write_config(folder, config, path)
        if split is not None:
            split.save(folder / SPLIT)
        write_run(folder, record)


def run_exists(path: Path, changed: Sequence[Change] = ()) -> InputError:
    """Return the error for a directory that has a run, which may have other settings."""
    what = "the directory already contains a run"
    if changed:
        what += f" with other settings: {'; '.join(map(str, changed))}"
    fix = f"Resume it (deltacell train --resume {path}), or choose another directory."
    return InputError(what, code="run-exists", where=path, fix=fix, changes=list(changed))


def remove_run(path: Path) -> None:
    """Remove a run; one that is being trained, or that holds anything else, raises."""
    path = read_run(path).path.absolute()
    check_no_links(path)
    strangers = [
        entry.name
        for entry in path.iterdir()
        if entry.name not in ENTRIES and not entry.name.endswith(TEMPORARY)
    ]
    if strangers:
        what = f"'{min(strangers)}' is not part of a run and would be deleted"
        raise StoreError(what, code="exists", where=path, fix="Move it, or choose another path.")
    with locked(path / LOCK, whose="run"):
        # A kill from here on leaves nothing at the path; the rest is removed by the next process.
        abandoned = path.rename(temporary_name(path))
    shutil.rmtree(abandoned, ignore_errors=True)


@contextmanager
def opened(path: Path, *, running: bool = False) -> Iterator[RunDirectory]:
    """Open a run with its lock, so that no other process trains it meanwhile.

    An attempt that is `running` becomes ``failed`` if an error is raised, and ``interrupted`` if
    anything else is.
    """
    path = read_run(path).path.absolute()
    check_no_links(path)
    with locked(path / LOCK, whose="run") as lock:
        run = RunDirectory(path, read_run(path), running, lock)
        try:
            yield run
        except BaseException as error:
            failed = isinstance(error, Exception)
            # A full disk must not hide the error that is being raised.
            with suppress(StoreError):
                if run.running and failed:
                    run.end(Status.failed, error=str(error) or type(error).__name__)
                elif run.running:
                    run.end(Status.interrupted)
            raise


@dataclasses.dataclass
class RunDirectory:
    """A run that this process has locked, see `opened`.

    Who may write into a run directory: the process that holds its lock, which is the first rank of
    a training, writes the record, the config, the split, the checkpoints, the metrics, the figures
    and what loggers write. The other ranks write only their own files in ``phases/`` and
    ``traces/``, whose names contain the rank. Without the lock of the run, `deltacell evaluate`
    fits baselines in ``baselines/``, where each is a run with a lock of its own, and `deltacell
    predict` writes to ``rankings/``, where each ranking has a lock. Everything else only reads.
    """

    path: Path
    record: RunRecord
    running: bool
    lock: Lock

    def checkpoints(self, trainer: TrainerConfig | None = None) -> Checkpoints:
        """Return the checkpoints of the run, which this process may change."""
        if trainer is None:
            return Checkpoints(self.path / CHECKPOINTS, lock=self.lock)
        return Checkpoints(
            self.path / CHECKPOINTS,
            trainer.keep,
            self.lock,
            best_by=trainer.best,
        )

    def update(self, **changes: Any) -> None:
        """Change fields of the record, on disk and in memory."""
        self.lock.check()
        changed = dataclasses.replace(self.record, **changes)
        write_run(self.path, changed)
        self.record = changed

    def write_metrics(self, rows: Sequence[Mapping[str, float | None]]) -> None:
        """Write ``metrics.csv``."""
        self.lock.check()
        write_metrics(self.path, rows)

    def resume(self, config: Config, *, from_step: int, world_size: int = 1) -> None:
        """Start another attempt; one that was killed becomes ``interrupted``."""
        attempts = list(self.record.attempts)
        if attempts[-1].status is Status.running:
            attempts[-1] = dataclasses.replace(attempts[-1], status=Status.interrupted)
        attempts.append(Attempt(started=now(), from_step=from_step, world_size=world_size))
        fresh = {"status": Status.running, "ended": None, "error": None}
        self.update(**fresh, world_size=world_size, attempts=tuple(attempts))
        write_config(self.path, config)
        self.running = True

    def end(self, status: Status, **changes: Any) -> None:
        """End the current attempt, or one that was killed."""
        changes |= {**self.checkpoints().reached(), "status": status}
        *before, current = self.record.attempts
        closed = dataclasses.replace(current, ended=now(), status=status)
        self.update(**changes, ended=closed.ended, attempts=(*before, closed))
        self.running = False


def commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """Return the git commit of deltacell's checkout, with ``-dirty`` if it has changes."""
    # A package that is installed inside another project's checkout is not part of it.
    tracked = "ls-files --error-unmatch __init__.py"
    described = "describe --always --dirty --abbrev=40 --exclude=*"
    with suppress(OSError, subprocess.SubprocessError):
        for words in (tracked, described):
            process = subprocess.run(
                ["git", "-C", str(folder), *words.split()],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
        return process.stdout.strip()
    return None


COLUMNS = (
    *("epoch", "step", "seconds", "samples_per_s", "lr", "train_loss"),
    *("validation_loss", "validation_pearson", "validation_spearman", "validation_mse"),
)


def write_metrics(run: Path, rows: Sequence[Mapping[str, float | None]]) -> None:
    """Write ``metrics.csv`` for users; deltacell does not read it."""
    text = io.StringIO()
    names = dict.fromkeys(COLUMNS)
    for row in rows:
        names |= dict.fromkeys(row)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(run / METRICS_FILE, text.getvalue(), what="the metrics")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of every epoch or round from the last checkpoint."""
    rows: list[dict[str, Any]] = Checkpoints(run / CHECKPOINTS).load().get("rows", [])
    return rows
