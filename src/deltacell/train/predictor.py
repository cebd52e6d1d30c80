"""Predictors of scores: that of a config, and that of a run with its weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch

from deltacell.base.errors import DeltacellError, InputError
from deltacell.cell import Cell
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import BuildContext, Model, Prediction, Predictor, TargetScale
from deltacell.models.scoring import Scorer
from deltacell.profile.record import (
    CHECKPOINTS,
    SPLIT,
    ModelFacts,
    RunRecord,
    Status,
    read_run,
)
from deltacell.screen import Genotypes
from deltacell.storage import read_manifest
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.train.devices import device_named
from deltacell.train.limits import Limits
from deltacell.train.position import Position
from deltacell.train.run_directory import check_meaning, resumed_config


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A trained predictor with its cell and the scale of its targets."""

    model: Predictor
    cell: Cell
    scale: TargetScale
    batch_size: int = 64  # of a predictor that has no opinion: that of its training

    def rescaled(self, factor: float, shift: float) -> TrainedPredictor:
        """Return a predictor of ``factor * score + shift``."""
        mean = factor * self.scale.mean + shift
        return replace(self, scale=TargetScale(mean, factor * self.scale.std))

    def scorer(self) -> Scorer:
        """Return exact scores that do not depend on the batch."""
        return self.model.scorer(self.cell, self.scale)

    def __call__(self, genotypes: Genotypes) -> torch.Tensor:
        """Return the expected scores [b] in the screen's unit."""
        return self.predict(genotypes).score

    @torch.no_grad()
    def predict(
        self,
        genotypes: Genotypes,
        progress: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Return the predictions in the screen's unit, on the host and without other results.

        They are computed on the device of the model.
        """
        self.model.check_conditions(genotypes)
        n = len(genotypes)
        per_call = self.model.sets_per_call or self.batch_size
        parts: list[Prediction] = []
        for begin in range(0, max(n, 1), per_call):
            if progress is not None:
                progress(begin, n)
            rows = torch.arange(begin, min(begin + per_call, n))
            part = genotypes if len(rows) == n else genotypes.take(rows)
            prediction = self.model(self.cell, self.model.on_device(self.cell, part))
            parts.append(prediction.on_host())
        spread = _joined([part.spread for part in parts])
        given_hit = _joined([part.given_hit for part in parts])
        return Prediction(
            self.scale.undo(torch.cat([part.score for part in parts])),
            hit=_joined([part.hit for part in parts]),
            given_hit=None if given_hit is None else self.scale.undo(given_hit),
            spread=None if spread is None else spread * abs(self.scale.std),
        )


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None


def build_predictor(
    config: Config,
    data: TrainingData,
    recorded: Mapping[str, Any] | None = None,
) -> Predictor:
    """Return a new predictor of a config; a network has taken in the training part.

    `recorded` are the facts of an earlier attempt. The name of a merged relation stands for the
    relation that it was merged into.
    """
    merged: dict[str, str] = {}
    for new, olds in config.data.merge_relations.items():
        merged |= dict.fromkeys(olds, new)
    context = BuildContext(
        data.cell,
        data.largest,
        merged_relations=merged,
        recorded=recorded or {},
    )
    predictor = config.model.build(context)
    if isinstance(predictor, Model):
        predictor.begin(data.cell, data.labelled(data.split.train))
    return predictor


def build_model(
    config: Config,
    data: TrainingData,
    recorded: Mapping[str, Any] | None = None,
) -> Model:
    """Return `build_predictor` for a config whose predictor the training loop trains."""
    return _of_kind(Model, build_predictor(config, data, recorded), config)


def build_fitted(config: Config, data: TrainingData) -> FittedPredictor:
    """Return `build_predictor` for a config whose predictor is fitted in one call."""
    return _of_kind(FittedPredictor, build_predictor(config, data), config)


Kind = TypeVar("Kind", Model, FittedPredictor)


def _of_kind(kind: type[Kind], predictor: Predictor, config: Config) -> Kind:
    if not isinstance(predictor, kind):
        what = f"model={config.model.name} builds a {type(predictor).__name__}, which is not a "
        fix = "Let the config say trained_by='loop' for a Model, and 'fit' for a FittedPredictor."
        raise InputError(f"{what}{kind.__name__}", code="broken-model", fix=fix)
    return predictor


def model_record(config: Config, model: Model, cell: Cell) -> ModelFacts:
    """Return what the record of a run says of its model and loss."""
    relations = tuple(cell.relations) if model.relations is None else model.relations
    return ModelFacts(
        name=config.model.name,
        loss=config.loss.name,
        relations=relations,
        messages=model.messages(),
    )


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with its data and weights."""

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: TrainedPredictor

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
    return LoadedRun(record, config, data, predictor)


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
    """Return the name of each run; its directory if namesakes differ in more than the seed."""
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
    """Return whether all runs have the same model and model settings."""
    return all(run.config.model == runs[0].config.model for run in runs)
