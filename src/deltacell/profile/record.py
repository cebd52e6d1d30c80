"""The schema of a run's record, ``run.json``, and the names of the files next to it.

Runs are explained and compared with this alone, without the package that trained them.
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
import yaml  # type: ignore[import-untyped]

from deltacell.base.errors import InputError
from deltacell.base.files import read_json, seal_of, write_json
from deltacell.profile.accuracy import Accuracy
from deltacell.profile.refitted import Refitted

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
    """The state of a run or of one attempt."""

    running = "running"
    finished = "finished"
    failed = "failed"
    interrupted = "interrupted"


class Messages(StrEnum):
    """On what a model passes messages in a step."""

    nothing = "nothing"
    wild_type = "the wild type"
    graph_per_mutant = "a graph of every mutant"
    masked_edges = "all edges of every mutant, masked"
    whole_products = "whole products of every mutant"
    changes = "what changes in every mutant"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The trained model, and the relations that its messages use."""

    name: str
    loss: str
    relations: tuple[str, ...] = ()
    messages: Messages | None = None  # None if the strategy has not been chosen yet


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process or group of processes that trained the run from its start or a checkpoint."""

    started: str  # in UTC, as returned by `now`
    ended: str | None = None  # None while it runs, or if it was killed
    status: Status = Status.running
    from_step: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """Which cell was used."""

    checksum: str
    n_genes: int
    relations: tuple[str, ...] = ()
    genes: str = ""  # the checksum of their names in order; empty in records of earlier versions


@dataclass(frozen=True, kw_only=True)
class ScreenFacts:
    """Which screen was used, with its genotypes and studies."""

    checksum: str
    genotypes: int
    studies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContextFacts:
    """A study that helped to predict the screen."""

    name: str
    checksum: str  # of its screen
    genotypes: int
    predictor: str = ""  # the checksum of the weights of a run that was used, if one was


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The number of genotypes in each part of the split."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """Mean and standard deviation of the training part, which standardise targets."""

    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A checkpoint: when it was taken, and the value of its metric if that is finite."""

    epoch: int
    step: int
    file: str
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The contents of ``run.json``."""

    started: str
    ended: str | None = None
    path: Path = field(default=Path(), compare=False)  # the run's directory; not written
    status: Status
    name: str
    mode: str
    seed: int
    command: tuple[str, ...]
    attempts: tuple[Attempt, ...] = ()  # the first one, and one per resume
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    cell: CellFacts | None = None
    screen: ScreenFacts | None = None
    context: tuple[ContextFacts, ...] = ()
    split: dict[str, Any] | None = None  # `Split.to_json` and its leakage sentence
    samples: Samples | None = None
    warnings: tuple[str, ...] = ()  # what makes its scores doubtful, such as likely leaks
    device: str | None = None
    threads: int | None = None  # of each process, on a CPU
    precision: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # of all processes together
    accumulate: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    model: ModelFacts | None = None  # of a network
    propagation: dict[str, Any] | None = None
    model_facts: dict[str, Any] = field(default_factory=dict)  # other facts that a model recorded
    n_parameters: int | None = None
    best: Reached | None = None  # by the first metric of ``trainer.best``
    best_by_others: tuple[Reached, ...] = ()  # by the others
    last: Reached | None = None
    error: str | None = None
    target: Target | None = None  # None if targets were not standardised
    limits: str | None = None  # a sentence on what limits this run
    component_cost: float | None = None  # the share of an attempt that recording components took
    refitted: Refitted | None = None  # from which run, if it has seen all measurements
    accuracy: Accuracy | None = None  # on its test part, by the last `deltacell evaluate`

    def facts_of_model(self) -> dict[str, Any]:
        """Return what the model recorded about itself; ``propagation`` has a place of its own."""
        return {"propagation": self.propagation, **self.model_facts}

    def phases(self) -> pl.DataFrame:
        """Return the rows of the phase timer, of all ranks and attempts."""
        from deltacell.profile.phase_rows import read_phases

        return read_phases(self.path / PHASES)

    def config(self) -> dict[str, Any]:
        """Return the resolved config as nested mappings; empty if the run has no such file."""
        file = self.path / CONFIG_FILE
        try:
            config = yaml.safe_load(file.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            what = f"the config cannot be read: {str(error).splitlines()[0]}"
            fix = "Restore it from a copy, or delete it to explain the run without it."
            raise InputError(what, code="no-config", where=file, fix=fix) from error
        return config if isinstance(config, dict) else {}


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read and check the record of a run, given its directory or its ``run.json``."""
    path = Path(path)
    folder = path.parent if path.name == RUN_FILE else path
    file = folder / RUN_FILE
    if not file.is_file():
        why = f"it has no {RUN_FILE}" if folder.exists() else "it does not exist"
        what = f"not a run directory: {why}"
        fix = "Give a directory made by `deltacell train`."
        raise InputError(what, code="not-a-run", where=folder, fix=fix)
    data = read_json(file, what="the record of the run")
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema != SCHEMA_VERSION:
        what = f"not a run record of schema {SCHEMA_VERSION}, which this version reads"
        raise InputError(what, code="not-a-record", where=file)
    if data.get("seal") != seal_of(data):
        what = "the run record was edited or damaged after it was written"
        raise InputError(what, code="broken-seal", where=file, fix="Restore it from a copy.")
    try:
        record = msgspec.convert(data, RunRecord)
    except (msgspec.ValidationError, OverflowError) as error:
        what = f"the run record is invalid: {error}"
        raise InputError(what, code="invalid-record", where=file) from error
    return replace(record, path=folder)


def write_run(path: str | os.PathLike[str], record: RunRecord) -> None:
    """Write the record of a run into its directory, with a seal."""
    data = {"schema": SCHEMA_VERSION, **asdict(record)}
    del data["path"]
    data["seal"] = seal_of(data)
    write_json(Path(path) / RUN_FILE, data, what="the record of the run")


def now() -> str:
    """Return the current time in UTC, as a record has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
