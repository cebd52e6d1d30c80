"""`deltacell bench train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def train(
    steps: Annotated[int, typer.Option(help="Steps of a run that count.")] = 12,
    repeats: Annotated[int, typer.Option(help="Pairs of runs, with and without phases.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Measure training from end to end: both models, the loader's share, the phase timers.

    On the yeast-sized cell and two cores it takes some ten minutes.

    Example: deltacell bench train --json train.json
    """
    from deltacell.bench import train as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import console

    with progress_bar() as report:
        result = bench.run(report, quick, steps=steps, repeats=repeats)
    print_bench(result, "training, the whole loop")
    ratio = result["ratios"]["hetero_cell_over_dango_s_per_sample"]
    console().print(f"a sample of HeteroCell takes {ratio:.3g} times one of DANGO", markup=False)
    write_json(json, result)
