"""`deltacell bench predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def predict(
    repeats: Annotated[int, typer.Option(help="Turns of every variant; the median counts.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Measure how many triples per second both models rank, beside a plain loop of batches.

    On the yeast-sized cell and two cores it takes about two minutes.

    Example: deltacell bench predict --json predict.json
    """
    from deltacell.bench import predict as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = bench.run(report, quick, repeats=repeats)
    print_bench(result, "triples ranked per second")
    write_json(json, result)
