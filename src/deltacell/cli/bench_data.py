"""`deltacell bench data`: what loading costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def data(
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell, in seconds; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Compare this loader with two per-record pipelines, side by side in one run.

    Example: deltacell bench data --json loader.json
    """
    from deltacell.bench import data as bench
    from deltacell.cell import Cell
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        if quick:
            cell = Cell.synthetic("demo")
            result = bench.run(20_000, cell=cell, repeats=3, seconds=0.3, progress=report)
            result |= {"bars": {}, "command": "deltacell bench data --quick"}
        else:
            result = bench.run(progress=report)
    print_bench(result, "loading genotypes")
    write_json(json, result)
