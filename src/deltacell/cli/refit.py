"""`deltacell refit`: the predictor of a run, fitted on all measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import option


def refit(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    out: Annotated[
        Path | None, option("Directory of the new run; RUN-refitted by default.")
    ] = None,
) -> None:
    """Fit the predictor of a run on all measurements of its screen, to rank with it.

    The numbers of trees and the calibration stay those that the run chose by its validation part.
    The new run has seen the test part, so test the run that it came from. Rerun the command after
    a stop. Networks, which are trained in epochs, cannot be refitted.

    Example: deltacell refit runs/first --out runs/final
    """
    from deltacell.api.refit import refit as fit_on_everything
    from deltacell.profile.record import read_run
    from deltacell.train.loaded_runs import load_run

    outcome = fit_on_everything(load_run(run), out)
    if outcome.signal:
        typer.echo(f"Stopped; rerun the command to fit it: {outcome.path}")
        raise typer.Exit(128 + outcome.signal)
    refitted = read_run(outcome.path).refitted
    assert refitted is not None
    typer.echo(f"Finished: {outcome.path}")
    typer.echo(refitted.sentence)
    typer.echo(f"Rank with it: deltacell predict {outcome.path}")
    typer.echo(f"Test results: deltacell evaluate {run}")
