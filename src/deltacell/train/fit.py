"""Fitting a predictor in one call, from its config to the end of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from deltacell.base.errors import InputError
from deltacell.base.files import remove_abandoned
from deltacell.base.text import Progress
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import Prediction, TargetScale
from deltacell.profile.fit_phases import FitTimer, write_fit_phases
from deltacell.profile.limits import limits_of_fit
from deltacell.profile.record import PHASES, Status
from deltacell.profile.refitted import Refitted
from deltacell.train.checkpoints import validation_metrics
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, draw_zeros
from deltacell.train.devices import set_threads
from deltacell.train.intervals import Intervals, calibrated_on_validation
from deltacell.train.opened_run import OpenedRun, opened_run
from deltacell.train.outcome import Outcome
from deltacell.train.predictor import TrainedPredictor, build_fitted
from deltacell.train.run_config import MEANING, meaning
from deltacell.train.run_directory import RunDirectory
from deltacell.train.signals import StopSignals
from deltacell.train.state import Row
from deltacell.train.task import Validation

_METRICS = ("pearson", "spearman", "mse")


def fit_predictor(
    config: Config,
    resume: Path | None = None,
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    progress: Progress | None = None,
    refitted: Refitted | None = None,
    intervals: Intervals | None = None,
) -> Outcome:
    """Fit the predictor of a config in one call; a fit that did not finish starts again.

    `progress` is told how far the fit is; `refitted` is for the record of a run that is fitted on
    all measurements, whose `intervals` were calibrated before. The other arguments are those of
    `deltacell.train.run.train`.
    """
    timer = FitTimer()
    began = time.monotonic()
    with ExitStack() as stack:
        run = stack.enter_context(opened_run(config, resume, data, timer=timer))
        predictor = build_fitted(config, run.data)
        directory = run.begin(command, refitted)
        assert directory is not None
        if _was_fitted(run, directory):
            return Outcome(run.path, 0)
        set_threads(config.trainer)
        directory.update(**run.data.facts(), device="cpu", threads=torch.get_num_threads())
        signals = stack.enter_context(StopSignals())
        report = _interruptible(progress, signals)
        try:
            _fit(predictor, run, directory, report, timer)
        except KeyboardInterrupt:
            directory.end(Status.interrupted)
            return Outcome(run.path, signals.received or 0)
        last_row: Row = {"seconds": time.monotonic() - began}
        with timer.phase("validation"):
            prediction = _validation_prediction(predictor, run.data)
            if prediction is not None:
                last_row |= _validation_metrics(prediction, run.data)
                intervals = calibrated_on_validation(run.data, prediction)
        _save(predictor, [*predictor.history, last_row], intervals, run, directory, timer)
        limits = _write_phases(timer, directory) if config.profiler.phases else None
        directory.end(Status.finished, limits=limits)
    return Outcome(run.path, 0)


def _was_fitted(run: OpenedRun, directory: RunDirectory) -> bool:
    """Begin another attempt of a resumed run, unless its fit has ended.

    A run that was killed after the fit and before it was recorded as finished is finished now.
    """
    if run.before is None:
        return False
    if run.before.status is Status.finished:
        what = f"the run has finished; use it: deltacell evaluate {run.path}"
        raise InputError(what, code="already-finished", where=run.path)
    if run.before.status is Status.running and run.checkpoints().last is not None:
        remove_abandoned(directory.path / PHASES)
        directory.end(Status.finished)
        return True
    directory.resume(run.config, from_step=0)
    return False


def _interruptible(progress: Progress | None, signals: StopSignals) -> Progress:
    """Return a progress that raises KeyboardInterrupt if a signal was received."""

    def report(what: str, done: int, total: int) -> None:
        if signals.received is not None:
            raise KeyboardInterrupt
        if progress is not None:
            progress(what, done, total)

    return report


def _fit(
    predictor: FittedPredictor,
    run: OpenedRun,
    directory: RunDirectory,
    report: Progress,
    timer: FitTimer,
) -> None:
    """Fit a predictor to the training part; the validation part may choose its settings."""
    data = run.data
    validation = data.part(data.split.validation)
    predictor.keep_files(directory.path, data)
    refitted = directory.record.refitted
    predictor.fit(
        data.cell,
        *data.part(data.split.train),
        validation=validation if len(data.split.validation) else None,
        draw_zeros=lambda ratio: draw_zeros(data, ratio, run.config.split.seed),
        seed=run.config.seed,
        progress=report,
        phase=timer.phase,
        context=data.context if predictor.reads_context else (),
        chosen=None if refitted is None else refitted.chosen,
    )
    directory.update(model_facts=predictor.facts())
    report("validation", 0, 0)


def _validation_prediction(predictor: FittedPredictor, data: TrainingData) -> Prediction | None:
    """Return the prediction of the validation part; None if it is empty."""
    genotypes, _ = data.part(data.split.validation)
    if not len(genotypes):
        return None
    return TrainedPredictor(predictor, data.cell, TargetScale()).predict(genotypes)


def _validation_metrics(prediction: Prediction, data: TrainingData) -> Row:
    """Return the metrics of the validation part."""
    _, measured = data.part(data.split.validation)
    # Measured sets are hits, so a two-part predictor is validated on its score given a hit.
    predicted = prediction.among_hits.double().numpy()
    metrics = Validation(measured, predicted, loss=math.nan).metrics()
    return {f"validation_{name}": metrics[name] for name in _METRICS}


def _save(
    predictor: FittedPredictor,
    history: Sequence[Row],
    intervals: Intervals | None,
    run: OpenedRun,
    directory: RunDirectory,
    timer: FitTimer,
) -> None:
    """Write the metrics of all rounds and the only checkpoint of a fit."""
    rows = []
    for number, metrics in enumerate(history, start=1):
        row = {name: float(value) for name, value in metrics.items()}
        rows.append({**row, "epoch": number, "step": number})
    directory.write_metrics(rows)
    state = {
        "predictor": predictor.state_dict(),
        "rows": rows,
        "intervals": None if intervals is None else intervals.to_json(),
        MEANING: meaning(run.config, run.data, run.path),
    }
    with timer.phase("checkpoint"):
        directory.checkpoints(run.config.trainer).save(
            state,
            step=len(rows),
            epoch=len(rows),
            metrics=validation_metrics(rows[-1]),
        )


def _write_phases(timer: FitTimer, directory: RunDirectory) -> str | None:
    """Write where the time of the fit went, and return what limited it."""
    seconds = timer.seconds()
    write_fit_phases(directory.path / PHASES, len(directory.record.attempts) - 1, seconds)
    return limits_of_fit(seconds)
