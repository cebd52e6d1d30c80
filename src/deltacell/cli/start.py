"""`deltacell start` and `deltacell demo`: from tables, or a synthetic cell, to a ranked list."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer


def start(
    folder: Annotated[Path, typer.Argument(help="Your tables: a screen, and networks if any.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Such as data.screen=NAME split.method=gene.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory to make.", show_default="FOLDER-results")
    ] = None,
    top: Annotated[int, typer.Option(help="Sets to keep of each end of the ranking.")] = 100,
) -> None:
    """Import tables, fit a predictor that suits them, test it, rank untested sets, make a page.

    It says first how long it will take. Rerun the command to resume one that was stopped.

    Example: deltacell start tables --out results
    """
    from deltacell.predict.verbs import Stopped
    from deltacell.report.predict import print_ranking
    from deltacell.report.terminal import printable
    from deltacell.start import PAGE, TABLES
    from deltacell.start import start as carry_out
    from deltacell.train.processes import exit_code
    from deltacell.words import duration_text

    def tell(sentence: str) -> None:
        typer.secho(printable(sentence), err=True)

    out = Path(f"{folder.resolve().name}-results") if out is None else out
    began = time.monotonic()
    try:
        ranking = carry_out(folder, out, top=top, overrides=settings or [], tell=tell)
    except Stopped as stopped:
        raise typer.Exit(exit_code(stopped.signal)) from None
    if ranking is None:
        typer.echo("Stopped; rerun the command to resume.")
        raise typer.Exit(130)
    print_ranking(ranking.to_json())
    took = duration_text(time.monotonic() - began)
    typer.echo(f"It took {took}. Open {out / PAGE}; how good it is: {out / TABLES}")


def demo(
    out: Annotated[
        Path, typer.Option(help="Directory to fill; that of an earlier demo is replaced.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option(help="Random seed of the cell, the screen and the weights.")
    ] = 0,
) -> None:
    """Train models on a synthetic cell, test, explain and rank; all of it on one page.

    What interacts in that cell is known, so the ranking can be compared with the truth. Every
    command is shown before it runs. It takes two or three minutes.

    Example: deltacell demo --out demo
    """
    # On so small a cell, threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from deltacell.cli.app import app
    from deltacell.demo.steps import PAGE, clear, results, steps
    from deltacell.files import write_text
    from deltacell.report.demo_page import demo_page

    clear(out)
    begun = time.monotonic()
    plan = steps(out, seed)
    for number, step in enumerate(plan, 1):
        typer.secho(f"\n{number} of {len(plan)}: {step.title}", bold=True)
        typer.echo(step.words)
        typer.secho(f"$ {shlex.join(['deltacell', *step.command])}\n", dim=True)
        code = app(list(step.command), standalone_mode=False)
        if code:
            raise typer.Exit(code)
    seconds = time.monotonic() - begun
    found = results(out, seed, seconds)
    page = out / PAGE
    write_text(page, demo_page(found), what="the page")
    typer.secho(f"\n{found['recovered']['sentence']}", bold=True)
    typer.echo(f"It took {seconds:.0f} s. Now open {page}.")
    typer.echo("With your own tables, start with: deltacell data import FOLDER --out data")
