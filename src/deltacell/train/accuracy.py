"""The accuracy of a run in its record, so that whoever ranks with the run sees it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from deltacell.base.errors import InputError
from deltacell.profile.accuracy import Accuracy
from deltacell.profile.record import read_run
from deltacell.train.loaded_runs import LoadedRun
from deltacell.train.run_directory import opened


def record_accuracy(run: LoadedRun, accuracy: Accuracy) -> None:
    """Record the accuracy of a finished run, beside the baselines of its earlier tests.

    A run that may only be read, or that another process is working on, stays as it is.
    """
    with suppress(InputError), opened(run.record.path) as directory:
        before = directory.record.accuracy
        if before is not None:
            accuracy = replace(accuracy, baselines={**before.baselines, **accuracy.baselines})
        if accuracy != before:
            directory.update(accuracy=accuracy)


def accuracy_of(run: LoadedRun) -> Accuracy | None:
    """Return the accuracy of a run, or of the run that it was refitted from; None without one.

    It is read again, because the run may have been tested after it was loaded.
    """
    refitted = run.record.refitted
    if refitted is not None:
        return refitted.accuracy
    return read_run(run.record.path).accuracy
