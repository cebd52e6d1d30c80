"""`deltacell bench dango`: what the closed-form loss saves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def dango(
    batch: Annotated[int, typer.Option(help="Genotypes per step.")] = 64,
    steps: Annotated[int, typer.Option(help="Steps that are timed.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell, in seconds; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
) -> None:
    """Compare a DANGO step in the closed form with one that forms every N x N reconstruction.

    Example: deltacell bench dango --json dango.json
    """
    from deltacell.bench import dango as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = bench.run(batch, steps, quick=quick, progress=report)
    print_bench(result, "a DANGO step")
    write_json(json, result)
