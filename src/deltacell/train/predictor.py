"""Predictors of scores: the model of a config, a run with its weights, or an ensemble of runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from scipy.special import expit
from torch import nn

from deltacell.arrays import Doubles
from deltacell.cell import Cell
from deltacell.errors import DeltacellError, InputError
from deltacell.models import STRING_LAMBDAS, STRING_RELATIONS, Dango, HeteroCell, Prediction
from deltacell.models.baselines import FittedPredictor
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import FitData, Parts, State
from deltacell.models.pairs import PairCell
from deltacell.profile.record import (
    CHECKPOINTS,
    FIGURES,
    SPLIT,
    TENSORBOARD,
    TRACES,
    RunRecord,
    Status,
    read_run,
)
from deltacell.propagate import strategy
from deltacell.propagate.auto import Auto
from deltacell.screen import Genotypes
from deltacell.store import read_manifest
from deltacell.train.config import Config, DangoConfig, HeteroCellConfig, options_of
from deltacell.train.data import Standard, TrainingData, load_data
from deltacell.train.run_directory import Checkpoints, check_meaning, resumed_config
from deltacell.train.task import Position

# Batch sizes of predictions: of DANGO, whose cost hardly depends on it, of fitted predictors, and
# of other networks.
WIDE, WHOLE_BLOCK, NETWORK = 4096, 131_072, 64

MEMBERS = "members"  # the directory of copied runs in the run of an ensemble


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained network or a fitted predictor, with its cell and the scale of its targets."""

    model: nn.Module | FittedPredictor
    cell: Cell
    standard: Standard
    at_once: int = NETWORK

    def rescaled(self, factor: float, shift: float) -> Predictor:
        """Return a predictor of ``factor * score + shift``."""
        mean, std = factor * self.standard.mean + shift, factor * self.standard.std
        return replace(self, standard=Standard(mean, std))

    @property
    def batch(self) -> int:
        if isinstance(self.model, FittedPredictor):
            return WHOLE_BLOCK
        return WIDE if isinstance(self.model, Dango) else self.at_once

    def __call__(self, genotypes: Genotypes) -> torch.Tensor:
        """Return the expected scores [b] in the screen's unit."""
        return self.predict(genotypes).score

    @torch.no_grad()
    def predict(
        self,
        genotypes: Genotypes,
        progress: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        n = len(genotypes)
        found: list[Any] = []
        options = {"reconstruct": False} if isinstance(self.model, Dango) else {}
        for begin in range(0, max(n, 1), self.batch):
            if progress is not None:
                progress(begin, n)
            rows = torch.arange(begin, min(begin + self.batch, n))
            some = genotypes if len(rows) == n else genotypes.take(rows)
            found.append(self.model(self.cell, some, **options))
        score = self.standard.undo(torch.cat([one.score for one in found]))
        if found[0].hit is None:
            return Prediction(score)
        given_hit = self.standard.undo(torch.cat([one.given_hit for one in found]))
        return Prediction(score, hit=torch.cat([one.hit for one in found]), given_hit=given_hit)


class Ensemble(FittedPredictor):
    r"""The weighted sum of the scores of other runs on the same data and split.

    .. math:: s = b + \sum_i w_i (s_i - m_i) / d_i, \quad w_i \ge 0

    with m and d the mean and standard deviation of each run's scores over the validation part, and
    b and w the least-squares fit to the scores measured there. For a two-part run, s is the score
    given a hit; the log odds of a hit are the mean over the two-part runs. The run directory has
    copies of the runs.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        if len(runs) < 2:
            what = "an ensemble needs at least two runs: model.runs=[runs/a,runs/b]"
            raise InputError(what, code="too-few-runs")
        self.runs = tuple(runs)
        self._members: list[Predictor] = []

    def adopt(self, directory: Path, data: TrainingData) -> None:
        """Copy the runs, which must have the same data, into a run directory and load them."""
        shutil.rmtree(directory / MEMBERS, ignore_errors=True)
        not_needed = shutil.ignore_patterns("baselines", FIGURES, TRACES, TENSORBOARD)
        for number, run in enumerate(self.runs):
            copy = directory / MEMBERS / f"{number}-{Path(run).resolve().name}"
            shutil.copytree(run, copy, ignore=not_needed)
        self.open(directory, data)

    def open(self, directory: Path, data: TrainingData) -> None:
        copies = sorted((directory / MEMBERS).iterdir(), key=lambda p: int(p.name.split("-")[0]))
        # Raises for a run of other data or another split.
        runs = [load_run(copy, data=data) for copy in copies]
        for run in runs:
            if not run.is_finished:
                what = "the run has not finished"
                raise InputError(what, code="unfinished-run", where=run.record.path)
        self._members = [run.predictor for run in runs]

    def _fit(self, data: FitData) -> State:
        validation = data.validation
        if validation is None:
            what = "an ensemble needs a validation part for its weights"
            raise InputError(what, code="empty-part", fix="Set split.validation above 0.")
        data.report("members", 0, len(self._members))
        scores = self._of_members(validation.sets)[0]
        means, deviations = scores.mean(axis=1), scores.std(axis=1)
        # A run with constant scores gets no weight.
        deviations = np.where(deviations > 0, deviations, np.inf)
        units = (scores - means[:, None]) / deviations[:, None]
        weights, _ = nnls(units.T, validation.targets - validation.mean)
        scale = {"means": means, "deviations": deviations}
        return {"weights": weights, "intercept": validation.mean, **scale}

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        scores, odds = self._of_members(sets)
        units = (scores - self._means[:, None]) / self._deviations[:, None]
        size: Doubles = self._intercept + self._weights @ units
        return Parts(size) if odds is None else Parts(expit(odds) * size, expit(odds), size)

    def _of_members(self, sets: GeneSets) -> tuple[Doubles, Doubles | None]:
        """Return the score of each run, [runs, sets], and the log odds of a hit, [sets]."""
        gene = GeneOrder(self._members[0].cell.genes).gene
        genotypes = Genotypes(torch.from_numpy(gene[sets.genes]), torch.from_numpy(sets.offsets))
        scores, odds = [], []
        for member in self._members:
            found = member.predict(genotypes)
            scores.append(found.score if found.given_hit is None else found.given_hit)
            if found.hit is not None:
                odds.append(torch.logit(found.hit.double(), eps=1e-9).numpy())
        return torch.stack(scores).double().numpy(), np.mean(odds, axis=0) if odds else None

    def evidence(self, cell: Cell, genotype: Sequence[int]) -> list[dict[str, Any]]:
        """Return the measured sets next to a set of genes, from the first run that has evidence."""
        able = [m.model for m in self._members if hasattr(m.model, "evidence")]
        found: list[dict[str, Any]] = able[0].evidence(cell, genotype) if able else []  # type: ignore[operator]
        return found

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._weights, self._means = state["weights"], state["means"]
        self._deviations, self._intercept = state["deviations"], state["intercept"]


def build_fitted(config: Config) -> FittedPredictor:
    predictor: FittedPredictor = config.model.built()(**options_of(config.model))
    return predictor


def build_model(
    config: Config,
    data: TrainingData,
    recorded: dict[str, Any] | None = None,
) -> nn.Module:
    """Return the network of a config, with the training part if it needs that.

    `recorded` is the propagation in the record of a run to resume. The name of a merged relation
    stands for the relation that it was merged into.
    """
    model, options, cell = config.model, options_of(config.model), data.cell
    into = {old: new for new, merged in config.data.merge_relations.items() for old in merged}
    named = options.get("relations")
    if isinstance(model, DangoConfig) and named is None:
        named = STRING_RELATIONS
    if named is not None:
        options["relations"] = list(dict.fromkeys(into.get(name, name) for name in named))
    if isinstance(model, DangoConfig):
        options |= {"lambdas": {**STRING_LAMBDAS, **model.lambdas}, "largest": data.largest}
    elif isinstance(model, HeteroCellConfig):
        bounds = {} if config.max_bytes is None else {"max_bytes": config.max_bytes}
        chosen = recorded and recorded["choice"]
        propagation = strategy(config.propagation, **(chosen or bounds))
        options |= {"largest": data.largest, "propagation": propagation}
    network: nn.Module = model.built()(cell, **options)
    if isinstance(network, PairCell):
        genotypes, _ = data.part(data.split.train)
        network.remember(cell, genotypes, torch.from_numpy(data.targets[data.split.train]))
    return network


def propagation_record(model: nn.Module) -> dict[str, Any] | None:
    """Return the propagation for the record of a run; None for a model without one."""
    if not isinstance(model, HeteroCell):
        return None
    way = model.propagation
    if isinstance(way, Auto):
        return {"name": "auto", "choice": dict(vars(way)), "why": way.explain()}
    return {"name": way.name, "choice": None, "why": "set in the config"}


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with its data and weights."""

    record: RunRecord
    config: Config
    data: TrainingData
    predictor: Predictor

    @property
    def is_finished(self) -> bool:
        return self.record.status is Status.finished


AnyRun = LoadedRun | str | os.PathLike[str] | Any
"""A loaded run, its directory, or an object with it as ``loaded``, such as `deltacell.Run`."""


def load_run(
    path: str | os.PathLike[str],
    which: str = "best",
    data: TrainingData | None = None,
) -> LoadedRun:
    """Load a run and its data, unless given, with weights ``best``, ``last`` or of a checkpoint."""
    record, config = read_run(path), resumed_config(path)
    data = load_data(config, record.path / SPLIT) if data is None else data
    checkpoints = Checkpoints(record.path / CHECKPOINTS)
    state = checkpoints.load("last" if which == "best" and checkpoints.best is None else which)
    check_meaning(state, config, data, record.path)
    if record.status is Status.running:
        # It may have been killed after its last step, before it was recorded as finished.
        with suppress(DeltacellError):
            last = checkpoints.load("last")
            if config.model.fitted or Position(**last["position"]).is_end(config):
                record = replace(record, status=Status.finished)
    if config.model.fitted:
        fitted = build_fitted(config)
        if isinstance(fitted, Ensemble):
            fitted.open(record.path, data)
        fitted.load_state_dict(data.cell, state["predictor"])
        predictor = Predictor(fitted, data.cell, Standard())
    else:
        model = build_model(config, data, record.propagation)
        # The average covers the parameters only, not the buffers.
        model.load_state_dict(state["model"] | (state["ema"] or {}))
        standard = Standard(**state["standard"])
        predictor = Predictor(model.eval(), data.cell, standard, config.data.batch_size)
    return LoadedRun(record, config, data, predictor)


def load_runs(runs: AnyRun | Sequence[AnyRun], which: str = "best") -> list[LoadedRun]:
    """Load several runs that are not loaded already; runs of the same data share it."""
    given = as_list(runs)
    if not given:
        fix = "Train one first: deltacell train, or deltacell.fit in Python."
        raise InputError("no runs were given", code="no-run", fix=fix)
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
