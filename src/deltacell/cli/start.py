"""`deltacell start` and `deltacell demo`: from tables or a synthetic cell to a ranked list."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import Columns, Overwrite, Seed, option, split_names


def start(
    folder: Annotated[Path, typer.Argument(help="Folder of tables: a screen, and any networks.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Overrides, as for train.")] = None,
    out: Annotated[Path | None, option("Output directory; FOLDER-results by default.")] = None,
    target: Annotated[
        str | None,
        option("Screen to predict; required if the folder has several."),
    ] = None,
    context: Annotated[
        str | None,
        option("Other screens and runs that help: names and paths with commas, or none."),
    ] = None,
    orthologues: Annotated[
        Path | None,
        option("Table of genes of this and another organism, for context of the other."),
    ] = None,
    condition: Annotated[
        str | None,
        option("Condition of the screen to predict, such as a cell line; the others help."),
    ] = None,
    columns: Columns = None,
    top: Annotated[int, option("Number of sets at each end of the ranking.")] = 100,
    no_refit: Annotated[
        bool,
        option("Rank with the predictor that was tested, not with all measurements.", "--no-refit"),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Import tables, fit and test a predictor, rank untested sets and write an HTML page.

    After the test, the predictor is fitted on all measurements, and ranks with these.

    First estimates how long this takes. Rerun the command to resume after a stop. Results of other
    files or settings are an error: choose another --out, or replace them with --overwrite.

    With several screens, --target names the one to predict. The others are its context: what they
    measured helps, each on a scale of its own. A copy of a public study of the same genes, kept by
    deltacell data get costanzo2010, is used as well. --context none does without.

    A table with several conditions, such as cell lines, gives a screen for each, and --condition
    names the one to predict; --columns says what its columns are.

    Example: deltacell start tables --target mine --out results
    """
    from deltacell.api.rank import Stopped
    from deltacell.api.start import start as start_from_tables
    from deltacell.base.text import duration_text
    from deltacell.cli.start_screen import StartScreen

    began = time.monotonic()
    try:
        started = start_from_tables(
            folder,
            out,
            target=target,
            context=_names(context),
            condition=condition,
            columns=columns or (),
            top=top,
            settings=[*(settings or []), *_setting_of(orthologues)],
            refit=not no_refit,
            overwrite=overwrite,
            observer=StartScreen(),
        )
    except Stopped as stopped:
        raise typer.Exit(128 + stopped.args[0]) from None
    duration = duration_text(time.monotonic() - began)
    typer.echo(f"Done in {duration}. Open {started.page}; test results: {started.tables}")


def _setting_of(orthologues: Path | None) -> list[str]:
    from deltacell.base.text import hydra_text

    return [] if orthologues is None else [f"data.orthologues={hydra_text(orthologues)}"]


def _names(context: str | None) -> list[str] | None:
    """Return the names of a context: an empty list for ``none``, None if there is no option."""
    if context is None:
        return None
    return [] if context == "none" else split_names(context)


def _carry_out(command: Sequence[str]) -> None:
    from deltacell.cli.app import app

    typer.secho(f"$ {shlex.join(['deltacell', *command])}\n", dim=True)
    code = app(list(command), standalone_mode=False)
    if code:
        raise typer.Exit(code)


def demo(
    out: Annotated[Path, option("Output directory; replaces an earlier demo.")] = Path("demo"),
    seed: Seed = 0,
) -> None:
    """Train, test and explain models of a synthetic cell, rank gene sets and write an HTML page.

    The interactions of that cell are known, so the ranking can be compared with the truth. Every
    command is printed before it runs. Takes two to three minutes.

    Example: deltacell demo --out demo
    """
    # On such a small cell, threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from deltacell.base.files import write_text
    from deltacell.demo.steps import PAGE, clear, results, steps
    from deltacell.report.predict import demo_page

    clear(out)
    begun = time.monotonic()
    total = len(steps(out, seed))
    for number in range(total):
        # The run that ranks is known only after the training.
        step = steps(out, seed)[number]
        typer.secho(f"\n{number + 1} of {total}: {step.title}", bold=True)
        typer.echo(step.words)
        _carry_out(step.command)
    seconds = time.monotonic() - begun
    found = results(out, seed, seconds)
    write_text(out / PAGE, demo_page(found), what="the page")
    typer.secho(f"\n{found['recovered']['sentence']}", bold=True)
    typer.echo(f"Done in {seconds:.0f} s. Open {out / PAGE}.")
    typer.echo("With your own tables: deltacell start FOLDER")
