"""Fitting the predictor of a run again, on all measurements of its screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.base.text import Progress
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.profile.record import RUN_FILE, RunRecord, Status, read_run
from deltacell.profile.refitted import Refitted
from deltacell.train.accuracy import accuracy_of
from deltacell.train.checkpoints import PEARSON
from deltacell.train.data import with_everything
from deltacell.train.fit import fit_predictor
from deltacell.train.loaded_runs import LoadedRun
from deltacell.train.outcome import Outcome
from deltacell.train.run_directory import run_exists


def refit_path(run: Path) -> Path:
    """Return where the refitted predictor of a run is by default: beside it."""
    run = run.absolute()
    return run.with_name(f"{run.name}-refitted")


def refit_run(
    run: LoadedRun,
    path: Path,
    *,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Outcome:
    """Fit the predictor of a run on all measurements of its screen, as a new run.

    What the run chose by its validation part, such as the number of trees and the calibration of
    hits, is kept, so nothing is chosen by measurements of the test part. A refit of the same run
    that was stopped starts again.
    """
    if run.config.model.trained_by != "fit":
        what = f"model={run.config.model.name} is trained in epochs, and only predictors that are "
        what += "fitted in one call can be fitted on all measurements"
        fix = "Rank with the run itself."
        raise InputError(what, code="cannot-refit", where=run.record.path, fix=fix)
    refitted = _refitted(run, path)
    _check_is_free(path, refitted)
    return fit_predictor(
        replace(run.config, directory=str(path)),
        command=command,
        data=with_everything(run.data),
        progress=progress,
        refitted=refitted,
        intervals=run.intervals,
    )


def _refitted(run: LoadedRun, path: Path) -> Refitted:
    """Return what the record of the new run says, or raise if the run cannot be refitted."""
    record = run.record
    if record.refitted is not None:
        what = "the run has seen all measurements already"
        fix = "Rank with it: deltacell predict RUN."
        raise InputError(what, code="already-refitted", where=record.path, fix=fix)
    if not run.is_finished:
        what = f"the run has not finished (it is {record.status})"
        fix = f"Resume it first: deltacell train --resume {record.path}"
        raise InputError(what, code="unfinished-run", where=record.path, fix=fix)
    predictor = run.predictor.model
    assert isinstance(predictor, FittedPredictor)
    return Refitted(
        run=os.path.relpath(record.path.resolve(), path.resolve()),
        started=record.started,
        measurements=len(with_everything(run.data).split.train),
        validation_pearson=_pearson_of(record),
        chosen=predictor.chosen(),
        accuracy=accuracy_of(run),
    )


def _pearson_of(record: RunRecord) -> float | None:
    """Return the validation Pearson of the best checkpoint, if it was chosen by that."""
    best = record.best
    return best.value if best is not None and best.metric == f"validation_{PEARSON}" else None


def _check_is_free(path: Path, refitted: Refitted) -> None:
    """Raise if a directory has another run than an unfinished refit of the same run."""
    if not (path / RUN_FILE).is_file():
        return
    there = read_run(path)
    # The run may have been tested in the meantime.
    before = None if there.refitted is None else replace(there.refitted, accuracy=None)
    if before != replace(refitted, accuracy=None) or there.status is Status.finished:
        raise run_exists(path)
