"""`deltacell bench pairs`: what pair messages cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def pairs(
    folder: Annotated[
        Path | None,
        typer.Option(help="A folder that `deltacell data import` made; by default synthetic data."),
    ] = None,
    screen: Annotated[str | None, typer.Option(help="The screen of the folder.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few trees and pairs, in seconds; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
) -> None:
    """Measure the columns of a screen, a training, and the scoring of all pairs of its genes.

    Example: deltacell bench pairs --folder data --json pairs.json
    """
    from deltacell.bench import pairs as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = bench.run(
            None if folder is None else str(folder),
            screen,
            rounds=10 if quick else 400,
            most_pairs=2_000 if quick else None,
            progress=report,
        )
    print_bench(result, "pair messages")
    write_json(json, result)
