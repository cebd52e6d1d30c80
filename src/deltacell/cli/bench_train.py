"""`deltacell bench train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def train(
    steps: Annotated[int, typer.Option(help="Steps of a run that count.")] = 12,
    repeats: Annotated[int, typer.Option(help="Pairs of runs, with and without phases.")] = 5,
    models: Annotated[
        str | None, typer.Option(help="Some of them, such as dango,hetero_cell_late.")
    ] = None,
    folder: Annotated[
        str | None, typer.Option(help="An imported folder instead of the synthetic yeast.")
    ] = None,
    screen: Annotated[str | None, typer.Option(help="A screen of the folder.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the demo cell; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Measure training from end to end: each model, the loader's share, the phase timers.

    On the yeast-sized cell and two cores it takes about half an hour.

    Example: deltacell bench train --json train.json
    """
    from deltacell.bench import train as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import console

    with progress_bar() as report:
        result = bench.run(
            report,
            quick,
            steps=steps,
            repeats=repeats,
            folder=folder,
            screen=screen,
            models=tuple(bench.CONFIGS) if models is None else tuple(models.split(",")),
        )
    print_bench(result, "training, the whole loop")
    for name, ratio in result["ratios"].items():
        model = name.removesuffix("_over_dango_s_per_sample")
        console().print(
            f"a sample of {model} takes {ratio:.3g} times as long as one of DANGO", markup=False
        )
    write_json(json, result)
