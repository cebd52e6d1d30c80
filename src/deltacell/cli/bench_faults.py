"""`deltacell bench faults`: what becomes of damaged files, hostile input and killed commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def faults(
    minutes: Annotated[
        float, typer.Option(min=0, help="How long; every kind gets one turn at least.")
    ] = 1.0,
    only: Annotated[
        str | None,
        typer.Option(help="Kinds that begin so, with commas between: flip, fuzz, inject train."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of all that is drawn.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Damage files, fuzz readers and fail file operations of commands, and count what follows.

    A case is clean where it ends in an error that says what is wrong, and right where it ends in
    the right result; a command that failed also has to end well when it is given again. All others
    are failures, and then the exit code is 1.

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
