"""A run as a predictor: its data, and its model with the weights that were chosen."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from deltacell.errors import DeltacellError, InputError
from deltacell.profile.record import CHECKPOINTS, SPLIT, RunRecord, Status, read_run
from deltacell.store import read_manifest
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import Standard, TrainingData, load_data
from deltacell.train.predictor import Ensemble, Predictor, build_fitted, build_for
from deltacell.train.run_directory import check_meaning, opened, resumed_config
from deltacell.train.task import Position


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with the weights that were chosen by validation."""

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: Predictor

    @property
    def is_finished(self) -> bool:
        return self.record.status is Status.finished


AnyRun = LoadedRun | str | os.PathLike[str] | Any
"""A run that is loaded, its directory, or what has one as ``loaded``, such as `deltacell.Run`."""


def load_run(
    path: str | os.PathLike[str], which: str = "best", data: TrainingData | None = None
) -> LoadedRun:
    """Load a run with the weights ``best``, ``last`` or of a checkpoint; `data` if it is loaded."""
    record, config = read_run(path), resumed_config(path)
    data = load_data(config, record.path / SPLIT) if data is None else data
    checkpoints = Checkpoints(record.path / CHECKPOINTS)
    state = checkpoints.load("last" if which == "best" and checkpoints.best is None else which)
    check_meaning(state, config, data, record.path)
    record = _settled(record, config, checkpoints)
    if config.model.fitted:
        fitted = build_fitted(config)
        if isinstance(fitted, Ensemble):
            fitted.open(record.path, data)
        fitted.load_state_dict(data.cell, state["predictor"])
        predictor = Predictor(fitted, data.cell, Standard())
    else:
        model = build_for(config, data, record.propagation)
        # An average is of the weights alone; what else a model holds is as it was saved.
        model.load_state_dict(state["model"] | (state["ema"] or {}))
        standard = Standard(**state["standard"])
        predictor = Predictor(model.eval(), data.cell, standard, config.data.batch_size)
    return LoadedRun(record, config, data, predictor)


def _settled(record: RunRecord, config: Config, checkpoints: Checkpoints) -> RunRecord:
    """Return the record with how the run ended, if a kill kept the run from saying so.

    The record on the disk is repaired too, if it can be written and nobody trains the run.
    """
    if record.status is not Status.running:
        return record
    with suppress(DeltacellError):
        # Another checkpoint may have been loaded because the last is damaged.
        state = checkpoints.load("last")
        if not config.model.fitted and not Position(**state["position"]).is_end(config):
            return record
        with suppress(DeltacellError), opened(record.path) as directory:
            if directory.record.status is Status.running:
                directory.end(Status.finished)
            return directory.record
        return dataclasses.replace(record, status=Status.finished)
    return record


def load_runs(runs: AnyRun | Sequence[AnyRun], which: str = "best") -> list[LoadedRun]:
    """Load several runs, unless they are loaded already; those with the same data share them."""
    given = as_list(runs)
    if not given:
        fix = "Train one first: deltacell train, or deltacell.fit in Python."
        raise InputError("no run was given", code="no-run", fix=fix)
    loaded: dict[Path, LoadedRun] = {}
    for one in given:
        held = getattr(one, "loaded", one)
        place = (held.record.path if isinstance(held, LoadedRun) else Path(held)).resolve()
        if place in loaded:
            raise InputError("the run was given twice", code="repeated-run", where=place)
        if not isinstance(held, LoadedRun):
            held = load_run(held, which, _shared(loaded.values(), Path(held)))
        loaded[place] = held
    return list(loaded.values())


def as_list(runs: AnyRun | Sequence[AnyRun]) -> list[AnyRun]:
    return list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]


def _shared(runs: Iterable[LoadedRun], path: Path) -> TrainingData | None:
    config, kept = resumed_config(path), path / SPLIT
    for run in runs:
        same = (run.config.data, run.config.split) == (config.data, config.split)
        if same and kept.exists() and read_manifest(kept)["checksum"] == run.data.split.checksum:
            return run.data
    return None


def best_by_validation(paths: Sequence[str | os.PathLike[str]]) -> Path:
    best: dict[Path, float] = {}
    for record in map(read_run, paths):
        if record.best is None or record.best.value is None:
            what = "the run has no validation metric to compare; leave it out, or leave out --best"
            raise InputError(what, code="no-metric", where=record.path)
        best[record.path] = record.best.value
    return max(best, key=best.__getitem__)


def labels_of(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the name of each run, or its directory's if runs of a name are more than seeds."""
    labels = []
    parts = attrgetter("model", "loss", "optimizer", "schedule", "data", "split")
    for run in runs:
        alike = [other for other in runs if other.record.name == run.record.name]
        seeds = {other.record.seed for other in alike}
        same = all(parts(other.config) == parts(run.config) for other in alike)
        unnamed = run.record.name == Config().name and len(alike) == 1
        is_one = same and len(seeds) == len(alike) and not unnamed
        labels.append(run.record.name if is_one else run.record.path.resolve().name)
    return labels


def are_alike(runs: Sequence[LoadedRun]) -> bool:
    """Return whether runs are of one model with the same parameters, whatever their seeds."""
    return all(run.config.model == runs[0].config.model for run in runs)
