"""Runs with their data and weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from deltacell.base.errors import DeltacellError, InputError, StoreError, check_type
from deltacell.cell import Cell
from deltacell.models.interface import Prediction, TargetScale
from deltacell.profile.record import CHECKPOINTS, SPLIT, RunRecord, Status, read_run
from deltacell.screen import Genotypes
from deltacell.storage import read_manifest
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.train.devices import device_named
from deltacell.train.intervals import GeneDistances, Intervals, calibrated_on_validation
from deltacell.train.limits import Limits
from deltacell.train.position import Position
from deltacell.train.predictor import TrainedPredictor, build_fitted, build_model
from deltacell.train.run_config import check_meaning, resumed_config


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with its data and weights."""

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: TrainedPredictor
    saved_intervals: Mapping[str, Any] | None = None  # of a predictor that is fitted in one call

    @cached_property
    def intervals(self) -> Intervals | None:
        """The 90 % intervals of its predictions; None without enough validation rows.

        Those of a network are calibrated on the validation part when they are first asked for.
        """
        if self.saved_intervals is not None:
            return Intervals.from_json(self.saved_intervals)
        genotypes, _ = self.data.part(self.data.split.validation)
        if not len(genotypes):
            return None
        return calibrated_on_validation(self.data, self.predictor.predict(genotypes))

    @cached_property
    def _genes_by_training(self) -> GeneDistances:
        return GeneDistances.of(self.data)

    def predict(
        self,
        genotypes: Genotypes,
        progress: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Return the predictions with the ends of their intervals, see `TrainedPredictor`."""
        prediction = self.predictor.predict(genotypes, progress)
        if self.intervals is None or not len(genotypes):
            return prediction
        predicted = prediction.among_hits.double().numpy()
        interval = self.intervals.around(self._genes_by_training, genotypes, predicted)
        low, high = (torch.from_numpy(end) for end in interval)
        return replace(prediction, low=low, high=high)

    @property
    def is_finished(self) -> bool:
        """Whether it was trained to its end."""
        return self.record.status is Status.finished


AnyRun = LoadedRun | str | os.PathLike[str] | Any
"""A loaded run, its directory, or an object with it as ``loaded``, such as `deltacell.Run`."""


def load_run(
    path: str | os.PathLike[str],
    which: str = "best",
    data: TrainingData | None = None,
    device: str | torch.device = "cpu",
) -> LoadedRun:
    """Load a run and its data, unless given, with weights ``best``, ``last`` or of a checkpoint.

    A network is moved to the device, see `device_named`; other predictors compute on the CPU.
    """
    place = device_named(device)
    record = read_run(path)
    config = resumed_config(path)
    data = load_data(config, record.path / SPLIT) if data is None else data
    _check_genes(record, data.cell)
    checkpoints = Checkpoints(record.path / CHECKPOINTS)
    state = checkpoints.load("last" if which == "best" and checkpoints.best is None else which)
    check_meaning(state, config, data, record.path)
    if record.status is Status.running and _has_ended(checkpoints, config):
        record = replace(record, status=Status.finished)
    if config.model.trained_by == "fit":
        fitted = build_fitted(config, data)
        fitted.open_files(record.path, data)
        context = data.context if fitted.reads_context else ()
        fitted.load_state_dict(data.cell, state["predictor"], context=context)
        predictor = TrainedPredictor(fitted, data.cell, TargetScale())
    else:
        model = build_model(config, data, record.facts_of_model())
        # The average covers the parameters only, not the buffers.
        model.load_state_dict(state["model"] | (state["ema"] or {}))
        scale = TargetScale(**state["standard"])
        model = model.to(place)
        predictor = TrainedPredictor(model.eval(), data.cell, scale, config.data.batch_size)
    return LoadedRun(record, config, data, predictor, state.get("intervals"))


def _check_genes(record: RunRecord, cell: Cell) -> None:
    """Raise if a run was trained on another list of genes, or on the same in another order."""
    sealed = record.cell
    if sealed is None or sealed.genes in ("", cell.genes.checksum):
        return
    what = f"the run was trained on another list of genes: {sealed.n_genes:,} genes with the "
    what += (
        f"checksum {sealed.genes[:12]}, and not {cell.n_genes:,} with {cell.genes.checksum[:12]}"
    )
    fix = "Restore the cell of the training, or train again."
    raise StoreError(what, code="other-genes", where=record.path, fix=fix)


def _has_ended(checkpoints: Checkpoints, config: Config) -> bool:
    """Return whether a run was killed after its last step, before it was recorded as finished."""
    with suppress(DeltacellError):
        last = checkpoints.load("last")
        if config.model.trained_by == "fit":
            return True
        return Limits.of_training(config).finished(Position(**last["position"]))
    return False


def load_runs(
    runs: AnyRun | Sequence[AnyRun],
    which: str = "best",
    device: str | torch.device = "cpu",
) -> list[LoadedRun]:
    """Load several runs that are not loaded already; runs of the same data share it."""
    unloaded = as_list(runs)
    if not unloaded:
        fix = "Train one first: deltacell train, or deltacell.fit in Python."
        raise InputError("no runs were given", code="no-run", fix=fix)
    loaded: dict[Path, LoadedRun] = {}
    for item in unloaded:
        run = getattr(item, "loaded", item)
        accepted = "a Run or the directory of a run; evaluate also takes names of baselines, "
        accepted += "tables of predictions and functions"
        check_type(run, (LoadedRun, str, os.PathLike), "run", accepted)
        place = (run.record.path if isinstance(run, LoadedRun) else Path(run)).resolve()
        if place in loaded:
            raise InputError("the run was given twice", code="repeated-run", where=place)
        if not isinstance(run, LoadedRun):
            run = load_run(run, which, _shared(loaded.values(), Path(run)), device)
        loaded[place] = run
    return list(loaded.values())


def as_list(runs: AnyRun | Sequence[AnyRun]) -> list[AnyRun]:
    """Return one run or several as a list."""
    return list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]


def _shared(runs: Iterable[LoadedRun], path: Path) -> TrainingData | None:
    """Return the data of a loaded run that are those of a run at a path; None if there are none."""
    config = resumed_config(path)
    split = path / SPLIT
    if not split.exists():
        return None
    checksum = read_manifest(split)["checksum"]
    for run in runs:
        has_same_settings = run.config.data == config.data and run.config.split == config.split
        if has_same_settings and run.data.split.checksum == checksum:
            return run.data
    return None


def labels_of(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the name of each run.

    It is that of its directory if runs of the same name differ in more than the seed.
    """
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
