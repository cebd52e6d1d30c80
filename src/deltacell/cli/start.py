"""`deltacell start`: from a folder of tables to a ranked list with evidence."""

from __future__ import annotations

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
