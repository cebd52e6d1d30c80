"""`deltacell demo`: from a synthetic cell to a ranked list, in a few minutes, on one page."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer


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
    from deltacell.demo.results import results
    from deltacell.demo.steps import PAGE, clear, steps
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
