"""A run whose predictor is fitted in one call: additive effects, boosted trees and the like."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell.errors import InputError
from deltacell.models.baselines import FittedPredictor
from deltacell.models.pairs import PairTrees
from deltacell.profile.record import CHECKPOINTS, METRICS_FILE, RUN_FILE, SPLIT, Status, read_run
from deltacell.train.build import build_fitted
from deltacell.train.changes import MEANING, meaning, resumed_config
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, EnsembleConfig
from deltacell.train.data import TrainingData, check_same, draw_zeros, load_data
from deltacell.train.devices import set_threads
from deltacell.train.ensemble import Ensemble, on_data_of_members
from deltacell.train.facts import data_facts, reached
from deltacell.train.metrics_file import MetricsFile
from deltacell.train.new_path import new_path
from deltacell.train.predictor import Predictor
from deltacell.train.run_directory import Outcome, RunDirectory
from deltacell.train.signals import StopSignals
from deltacell.train.standard import Standard
from deltacell.train.validate import Validation

Progress = Callable[[str, int, int], None]


def fit_run(
    config: Config,
    *,
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Fit a predictor into a new run directory, or again into one whose fit did not finish.

    Parameters
    ----------
    config
        The config of the run.
    command
        The command line, for the record.
    data
        What the config names, where that is loaded already.
    progress
        Called as ``progress(what, done, total)``.
    """
    if isinstance(config.model, EnsembleConfig):
        config = on_data_of_members(config)
    path = new_path(config)
    if _is_unfinished(path, config):
        return resume_fit(path, config, data=data, progress=progress)
    # What can be wrong with a config is found here, before there is a directory.
    predictor = build_fitted(config)
    data = load_data(config) if data is None else data
    with RunDirectory.create(path, config, command, world_size=1, split=data.split) as directory:
        return _fit(directory, config, predictor, data, progress)


def resume_fit(
    path: Path,
    config: Config,
    *,
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Fit again, from the start, in the directory of a run that did not finish.

    Parameters
    ----------
    path
        The run directory.
    config
        The one it was saved with, or one that differs in what may differ.
    data
        What the config names, where that is loaded already.
    progress
        Called as ``progress(what, done, total)``.
    """
    predictor = build_fitted(config)
    with RunDirectory.open(path) as directory:
        if directory.record.status is Status.finished:
            raise InputError(
                "the run is finished, so there is nothing to resume",
                where=path,
                fix=f"Use it: deltacell evaluate {path}; or train into another directory.",
            )
        checkpoints = Checkpoints(path / CHECKPOINTS)
        if directory.record.status is Status.running and checkpoints.last is not None:
            # It was killed after the fit, before its record said so.
            directory.settle(Status.finished, **reached(checkpoints))
            return Outcome(path, 0, best=None if (b := checkpoints.best) is None else b.metric)
        data = load_data(config, path / SPLIT) if data is None else data
        check_same(directory.record, data)
        directory.resume(from_step=0)
        directory.save_config(config)
        MetricsFile(path / METRICS_FILE).truncate_after(0)
        return _fit(directory, config, predictor, data, progress)


class _StoppedError(Exception):
    """A signal arrived while the predictor was being fitted."""


def _fit(
    directory: RunDirectory,
    config: Config,
    predictor: FittedPredictor,
    data: TrainingData,
    progress: Progress | None,
) -> Outcome:
    set_threads(config.trainer)
    path = directory.path
    metrics = MetricsFile(path / METRICS_FILE)
    checkpoints = Checkpoints(path / CHECKPOINTS, config.trainer.keep)
    began = time.monotonic()
    directory.update(**data_facts(data), device="cpu", threads=torch.get_num_threads())
    with StopSignals() as signals:

        def report(what: str, done: int, total: int) -> None:
            if signals.received is not None:
                raise _StoppedError
            for row in predictor.history[len(metrics.rows) :]:
                step = len(metrics.rows) + 1
                seconds = time.monotonic() - began
                metrics.append({**row, "epoch": step, "step": step, "seconds": seconds})
            if progress is not None:
                progress(what, done, total)

        try:
            validation = data.part(data.split.validation)
            options: dict[str, Any] = {}
            if isinstance(predictor, Ensemble):
                predictor.adopt(path, data)
            if isinstance(predictor, PairTrees):
                options["zeros"] = draw_zeros(data, predictor.zeros, config.split.seed)
            predictor.fit(
                data.cell,
                *data.part(data.split.train),
                validation=validation if len(validation[0]) else None,
                seed=config.seed,
                progress=report,
                **options,
            )
            report("validation", 0, 0)
        except _StoppedError:
            assert signals.received is not None
            directory.interrupt()
            return Outcome(path, signals.received)
        row = validation_row(predictor, data)
        step = len(metrics.rows) + 1
        metrics.append({"epoch": step, "step": step, "seconds": time.monotonic() - began, **row})
        state: dict[str, Any] = {
            "predictor": predictor.state_dict(),
            MEANING: meaning(config, data),
        }
        pearson = row.get("validation_pearson")
        checkpoints.save(state, step=step, epoch=step, metric=pearson)
        directory.finish(**reached(checkpoints))
    return Outcome(path, 0, best=None if checkpoints.best is None else checkpoints.best.metric)


def validation_row(predictor: FittedPredictor, data: TrainingData) -> dict[str, float]:
    """Return the metrics of the validation part; none where there is no such part.

    The validation part holds measured genotypes of the screen, so a predictor of two parts answers
    there with the score to expect of a hit.

    Parameters
    ----------
    predictor
        After it has learned.
    data
        The cell, the screen and the split.
    """
    rows = data.split.validation
    genotypes, measured = data.part(rows)
    if not len(genotypes):
        return {}
    found = Predictor(predictor, data.cell, Standard()).predict(genotypes)
    score = found.score if found.given_hit is None else found.given_hit
    predicted = score.numpy().astype(np.float64)
    metrics = Validation(rows, measured, predicted, loss=float("nan")).metrics()
    return {f"validation_{name}": value for name, value in metrics.items() if name != "loss"}


def _is_unfinished(path: Path, config: Config) -> bool:
    """Return whether a directory holds a run of this very config that did not finish."""
    if not (path / RUN_FILE).is_file() or read_run(path).status is Status.finished:
        return False
    return resumed_config(path) == config
