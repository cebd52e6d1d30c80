"""A run as a predictor: its data, and its model with the weights that were chosen."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from deltacell.errors import DeltacellError, InputError
from deltacell.profile.record import CHECKPOINTS, SPLIT, RunRecord, Status, read_run
from deltacell.store import read_manifest
from deltacell.train.build import build_fitted, build_for, recorded_propagation
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, is_fitted
from deltacell.train.data import Standard, TrainingData, load_data
from deltacell.train.predictor import Ensemble, Predictor
from deltacell.train.run_directory import RunDirectory, check_meaning, is_complete, resumed_config


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with the weights that were chosen by validation."""

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: Predictor

    @property
    def is_finished(self) -> bool:
        """Whether its training came to its end, by its epochs or by its patience."""
        return self.record.status is Status.finished


class HasRun(Protocol):
    """Whatever holds a loaded run, such as `deltacell.Run`."""

    @property
    def loaded(self) -> LoadedRun:
        """The run."""


AnyRun = LoadedRun | HasRun | str | os.PathLike[str]


def load_run(
    path: str | os.PathLike[str], which: str = "best", data: TrainingData | None = None
) -> LoadedRun:
    """Load a run to predict with it.

    `which` is ``best`` by validation, ``last``, or the name of a checkpoint; `data` is what it was
    trained on, if that is loaded already.
    """
    record, config = read_run(path), resumed_config(path)
    data = load_data(config, record.path / SPLIT) if data is None else data
    data.check_same(record)
    checkpoints = Checkpoints(record.path / CHECKPOINTS)
    state = checkpoints.load("last" if which == "best" and checkpoints.best is None else which)
    check_meaning(state, config, data, record.path)
    record = _settled(record, config, checkpoints)
    if is_fitted(config.model):
        fitted = build_fitted(config)
        if isinstance(fitted, Ensemble):
            fitted.open(record.path, data)
        fitted.load_state_dict(data.cell, state["predictor"])
        predictor = Predictor(fitted, data.cell, Standard())
    else:
        model = build_for(config, data, recorded_propagation(record.propagation, config))
        # An average is of the weights alone; what else a model holds is as it was saved.
        model.load_state_dict(state["model"] | (state["ema"] or {}))
        standard = Standard(**state["standard"])
        predictor = Predictor(model.eval(), data.cell, standard, config.data.batch_size)
    return LoadedRun(record, config, data, predictor)


def _settled(record: RunRecord, config: Config, checkpoints: Checkpoints) -> RunRecord:
    """Return the record with how the run ended, if a kill kept the run from saying so.

    The record on the disk is repaired too, if it can be written and nobody trains the run.
    """
    complete = False
    with suppress(DeltacellError):
        # Another checkpoint may have been loaded because the last is damaged.
        if record.status is Status.running:
            complete = is_complete(checkpoints.load("last"), config)
    if not complete:
        return record
    with suppress(DeltacellError), RunDirectory.open(record.path) as directory:
        if directory.record.status is Status.running:
            directory.end(Status.finished, **checkpoints.reached())
        return directory.record
    return dataclasses.replace(record, status=Status.finished)


def load_runs(runs: AnyRun | Sequence[AnyRun], which: str = "best") -> list[LoadedRun]:
    """Load several runs, unless they are loaded already; those with the same data share them."""
    several = isinstance(runs, Sequence) and not isinstance(runs, str)
    given = list(cast(Sequence[AnyRun], runs)) if several else [cast(AnyRun, runs)]
    if not given:
        raise InputError("no run was given", code="no-run")
    loaded: list[LoadedRun] = []
    seen: set[Path] = set()
    for one in given:
        held = one if isinstance(one, str | os.PathLike | LoadedRun) else one.loaded
        place = (held.record.path if isinstance(held, LoadedRun) else Path(held)).resolve()
        if place in seen:
            raise InputError("the run was given twice", code="repeated-run", where=place)
        seen.add(place)
        if not isinstance(held, LoadedRun):
            held = load_run(held, which, _shared(loaded, Path(held)))
        loaded.append(held)
    return loaded


def _shared(runs: Sequence[LoadedRun], path: Path) -> TrainingData | None:
    """Return the data of a run that names the same."""
    config, kept = resumed_config(path), path / SPLIT
    for run in runs:
        same = (run.config.data, run.config.split) == (config.data, config.split)
        if same and kept.exists() and read_manifest(kept)["checksum"] == run.data.split.checksum:
            return run.data
    return None


def best_by_validation(paths: Sequence[str | os.PathLike[str]]) -> Path:
    """Return the run with the highest validation metric."""
    records = [read_run(path) for path in paths]
    for record in records:
        if record.best is None or record.best.value is None:
            raise InputError(
                "the run has no validation metric to compare",
                code="no-metric",
                where=record.path,
                fix="Leave it out, or leave out --best.",
            )
    return max(records, key=lambda r: (r.best and r.best.value) or 0.0).path


def labels_of(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a label for each run, the same for runs that differ in their seeds alone.

    It is the name that the run was given. If runs of one name differ in more than their seeds, or
    if none was given, it is that of the directory.
    """
    labels = []
    for run in runs:
        alike = [other for other in runs if other.record.name == run.record.name]
        seeds = {other.record.seed for other in alike}
        same = all(_settings(other) == _settings(run) for other in alike)
        unnamed = run.record.name == Config().name and len(alike) == 1
        is_one = same and len(seeds) == len(alike) and not unnamed
        labels.append(run.record.name if is_one else run.record.path.resolve().name)
    return labels


def are_alike(runs: Sequence[LoadedRun]) -> bool:
    """Return whether runs are of one model with the same parameters, whatever their seeds."""
    return all(run.config.model == runs[0].config.model for run in runs)


def _settings(run: LoadedRun) -> tuple[Any, ...]:
    config = run.config
    return config.model, config.loss, config.optimizer, config.schedule, config.data, config.split
