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
from deltacell.train.changes import check_meaning, is_complete, resumed_config
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, check_same, load_data
from deltacell.train.ensemble import Ensemble
from deltacell.train.facts import reached
from deltacell.train.predictor import Predictor
from deltacell.train.registry import is_fitted
from deltacell.train.run_directory import RunDirectory
from deltacell.train.standard import Standard


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with the weights that were chosen by validation.

    Parameters
    ----------
    record, config
        As the run has them.
    data
        The cell, the screen and the split.
    predictor
        With the weights.
    """

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: Predictor

    @property
    def is_finished(self) -> bool:
        """Whether its training came to its end, by its epochs or by its patience."""
        return self.record.status is Status.finished


def load_run(
    path: str | os.PathLike[str], which: str = "best", data: TrainingData | None = None
) -> LoadedRun:
    """Load a run to predict with it.

    Parameters
    ----------
    path
        Its directory.
    which
        ``best`` by validation, ``last``, or the name of a checkpoint.
    data
        What it was trained on, where that is loaded already.
    """
    record, config = read_run(path), resumed_config(Path(path))
    data = load_data(config, record.path / SPLIT) if data is None else data
    check_same(record, data)
    checkpoints = Checkpoints(record.path / CHECKPOINTS)
    if which == "best" and checkpoints.best is None:
        which = "last"
    state = checkpoints.load(which)
    check_meaning(state, config, data, record.path)
    record = _settled(record, config, checkpoints)
    if is_fitted(config.model):
        fitted = build_fitted(config)
        if isinstance(fitted, Ensemble):
            fitted.open(record.path, data)
        fitted.load_state_dict(data.cell, state["predictor"])
        predictor = Predictor(fitted, data.cell, Standard())
    else:
        predictor = _network(record, config, data, state)
    return LoadedRun(record, config, data, predictor)


def _settled(record: RunRecord, config: Config, checkpoints: Checkpoints) -> RunRecord:
    """Return the record with how the run ended, where a kill kept the run from saying so.

    The record on the disk is mended too, where it can be written and nobody trains the run.
    """
    complete = False
    with suppress(DeltacellError):
        # What is loaded may be another one, and whole where the last is damaged.
        if record.status is Status.running:
            complete = is_complete(checkpoints.load("last"), config)
    if not complete:
        return record
    with suppress(DeltacellError), RunDirectory.open(record.path) as directory:
        if directory.record.status is Status.running:
            directory.settle(Status.finished, **reached(checkpoints))
        return directory.record
    return dataclasses.replace(record, status=Status.finished)


def _network(
    record: RunRecord, config: Config, data: TrainingData, state: dict[str, Any]
) -> Predictor:
    recorded = record.propagation
    propagation = None if recorded is None else recorded_propagation(recorded, config)
    model = build_for(config, data, propagation)
    # An average is of the weights alone; what else a model holds is as it was saved.
    model.load_state_dict(state["model"] | (state["ema"] or {}))
    standard = Standard(**state["standard"])
    return Predictor(model.eval(), data.cell, standard, config.data.batch_size)


class HasRun(Protocol):
    """Whatever holds a loaded run, such as `deltacell.Run`."""

    @property
    def loaded(self) -> LoadedRun:
        """The run."""


AnyRun = LoadedRun | HasRun | str | os.PathLike[str]


def load_runs(runs: AnyRun | Sequence[AnyRun], which: str = "best") -> list[LoadedRun]:
    """Load several runs; those that name the same data share them.

    Parameters
    ----------
    runs
        Their directories, one or more; a run that is loaded already stays as it is.
    which
        As in `load_run`.
    """
    several = isinstance(runs, Sequence) and not isinstance(runs, str)
    given = list(cast(Sequence[AnyRun], runs)) if several else [cast(AnyRun, runs)]
    if not given:
        raise InputError("no run was given")
    held = [one if isinstance(one, str | os.PathLike | LoadedRun) else one.loaded for one in given]
    places = [(one.record.path if isinstance(one, LoadedRun) else Path(one)) for one in held]
    resolved = [place.resolve() for place in places]
    for i, place in enumerate(places):
        if resolved[i] in resolved[:i]:
            raise InputError(
                f"the run {place} was given twice, and would count twice", fix="Give each run once."
            )
    loaded: list[LoadedRun] = []
    for one in held:
        if isinstance(one, LoadedRun):
            loaded.append(one)
        else:
            loaded.append(load_run(one, which, _shared(loaded, one)))
    return loaded


def best_by_validation(paths: Sequence[str | os.PathLike[str]]) -> Path:
    """Return the run with the highest validation metric.

    Parameters
    ----------
    paths
        Directories of runs, one or more.
    """
    records = [read_run(path) for path in paths]
    for record in records:
        if record.best is None or record.best.value is None:
            raise InputError(
                "the run has no validation metric, so that it cannot be compared with others",
                where=record.path,
                fix="Leave it out, or leave out --best.",
            )
    return max(records, key=lambda r: (r.best and r.best.value) or 0.0).path


def labels_of(runs: Sequence[LoadedRun]) -> list[str]:
    """Return what to call each of some runs: seeds of the same settings have one label.

    It is the name that the run was given. Where runs of one name differ in more than their seeds,
    or where none was given, it is that of the directory.

    Parameters
    ----------
    runs
        As loaded.
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


def _settings(run: LoadedRun) -> tuple[object, ...]:
    """Return what makes runs other than seeds of one another."""
    config = run.config
    return config.model, config.loss, config.optimizer, config.schedule, config.data, config.split


def _shared(runs: Sequence[LoadedRun], path: str | os.PathLike[str]) -> TrainingData | None:
    """Return the data of a run that names the same."""
    config = resumed_config(Path(path))
    for run in runs:
        if (run.config.data, run.config.split) == (config.data, config.split):
            kept = Path(path) / SPLIT
            if kept.exists() and read_manifest(kept)["checksum"] == run.data.split.checksum:
                return run.data
    return None
