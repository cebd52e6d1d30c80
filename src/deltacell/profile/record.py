"""What a run records of itself: the schema of ``run.json``, and the names of the files beside it.

Whoever explains or compares runs reads them with this alone, without the package that trained.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from deltacell.errors import InputError
from deltacell.files import read_json, seal_of, write_json

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
SPLIT = "split"
METRICS_FILE = "metrics.csv"
CHECKPOINTS = "checkpoints"
PHASES = "phases"
TRACES = "traces"
FIGURES = "figures"
TENSORBOARD = "tensorboard"


class Status(StrEnum):
    """How a run, or one attempt at it, stands or ended."""

    running = "running"
    finished = "finished"
    failed = "failed"
    interrupted = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process, or group of processes, that trained the run from its start or a checkpoint."""

    started: str  # in UTC, as `now` returns it
    ended: str | None = None  # None while it runs, and for good if it was killed
    status: Status = Status.running
    from_step: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """Which cell it was."""

    checksum: str
    n_genes: int
    relations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScreenFacts:
    """Which screen it was, and how many genotypes of which studies."""

    checksum: str
    genotypes: int
    studies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Genotypes in each part of the split."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """Mean and deviation of the training part, by which targets were standardised."""

    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A checkpoint: where it was taken, and the value of its metric if it is a finite number."""

    epoch: int
    step: int
    file: str
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What ``run.json`` holds."""

    started: str
    ended: str | None = None
    path: Path = field(default=Path(), compare=False)  # the run's directory; not written
    status: Status
    name: str
    mode: str
    seed: int
    command: tuple[str, ...]
    attempts: tuple[Attempt, ...] = ()  # the first, and one for each time it was resumed
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    cell: CellFacts | None = None
    screen: ScreenFacts | None = None
    split: dict[str, Any] | None = None  # `Split.to_json` and its leakage sentence
    samples: Samples | None = None
    device: str | None = None
    threads: int | None = None  # of each process, on a CPU
    precision: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # of all processes together
    accumulate: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    propagation: dict[str, Any] | None = None
    micro_batch: int | None = None
    n_parameters: int | None = None
    best: Reached | None = None
    last: Reached | None = None
    error: str | None = None
    target: Target | None = None  # None where targets were not standardised
    limits: str | None = None  # the sentence that says what limits this run

    def phases(self) -> pl.DataFrame:
        from deltacell.profile.phase_rows import read_phases

        return read_phases(self.path / PHASES)


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read and check the record of a run, given its directory or its ``run.json``."""
    path = Path(path)
    folder = path.parent if path.name == RUN_FILE else path
    file = folder / RUN_FILE
    if not file.is_file():
        why = f"it has no {RUN_FILE}" if folder.exists() else "it does not exist"
        what, fix = f"not a run directory: {why}", "Give one that `deltacell train` has made."
        raise InputError(what, code="not-a-run", where=folder, fix=fix)
    data = read_json(file, what="the record of the run")
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema != SCHEMA_VERSION:
        what = f"not the record of a run of schema {SCHEMA_VERSION}, which this program reads"
        raise InputError(what, code="not-a-record", where=file)
    if data.get("seal") != seal_of(data):
        what = "the record of the run was edited or damaged after it was written"
        raise InputError(what, code="broken-seal", where=file, fix="Restore it from a copy.")
    try:
        record = msgspec.convert(data, RunRecord)
    except (msgspec.ValidationError, OverflowError) as error:
        what = f"the record of the run is invalid: {error}"
        raise InputError(what, code="invalid-record", where=file) from error
    return replace(record, path=folder)


def write_run(path: str | os.PathLike[str], record: RunRecord) -> None:
    data = {"schema": SCHEMA_VERSION, **asdict(record)}
    del data["path"]
    data["seal"] = seal_of(data)
    write_json(Path(path) / RUN_FILE, data, what="the record of the run")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
