"""The verb `refit`: the predictor of a run, fitted on all measurements of its screen."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

from deltacell.api.showing import training_rendering
from deltacell.train.loaded_runs import LoadedRun
from deltacell.train.outcome import Outcome
from deltacell.train.refit import refit_path, refit_run


def refit(
    run: LoadedRun,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
) -> Outcome:
    """Fit the predictor of a run on all measurements of its screen; see `deltacell.Run.refit`."""
    path = refit_path(run.record.path) if out is None else Path(out)
    bar = training_rendering().progress_bar() if progress else nullcontext(None)
    with bar as report:
        command = ("deltacell", "refit", str(run.record.path), "--out", str(path))
        return refit_run(run, path, command=command, progress=report)
