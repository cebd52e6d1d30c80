"""`deltacell bench data`, `start` and `faults`: loading, start-up time, and faults on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json

Json = Annotated[Path | None, typer.Option(help="Also write it to a file.")]


def data(
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell, in seconds; no bar applies.")
    ] = False,
    json: Json = None,
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


def start(
    data: Annotated[
        Path | None, typer.Argument(help="What `data info` shows; the demo by default.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Starts of each; the least counts.")] = 5,
    json: Json = None,
) -> None:
    """Measure the processor time of `--help` and `data info`, beside `import numpy`.

    Example: deltacell bench start --json start.json
    """
    from deltacell.bench import start as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = bench.run(times, data, report)
    print_bench(result, "starts")
    write_json(json, result)


def faults(
    minutes: Annotated[
        float, typer.Option(min=0, help="How long; every kind gets at least one turn.")
    ] = 1.0,
    only: Annotated[
        str | None,
        typer.Option(help="Kinds that begin so, with commas between: flip, fuzz, inject train."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Json = None,
) -> None:
    """Damage files, fuzz readers and fail file operations of commands, and count what follows.

    A case is clean where it ends in an error that says what is wrong, and right where it ends in
    the right result; a command that failed also has to succeed when it is rerun. All others are
    failures, and then the exit code is 1.

    Example: deltacell bench faults --minutes 10 --json faults.json
    """
    from deltacell.bench import faults as bench
    from deltacell.cli import main
    from deltacell.report.bench import print_bench

    kinds = None if only is None else [kind.strip() for kind in only.split(",")]
    result = bench.run(
        minutes, main, seed=seed, kinds=kinds, say=lambda text: typer.secho(text, err=True)
    )
    print_bench(result, "faults")
    for row in result["rows"]:
        for example in row["examples"]:
            typer.echo(f"{row['kind']}: {example}")
    write_json(json, result)
    if result["total"]["failures"]:
        raise typer.Exit(1)
