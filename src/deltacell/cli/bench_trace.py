"""`deltacell bench trace`: what reading and explaining traces costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def trace(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Traces; with --make the one to write.")
    ],
    make: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Write a trace of this size, such as 100MB or 1GB."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="The real trace, of a GPU, that --make repeats.")
    ] = None,
    hta: Annotated[
        Path | None,
        typer.Option(
            help="Also measure HolisticTraceAnalysis, in an environment in this directory, which "
            "is made from PyPI where it is missing."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Measure seconds, events a second and memory of reading and explaining traces.

    A large one for it: deltacell bench trace --make 100MB --from rank0.json.gz big.json

    Example: deltacell bench trace big.json --json trace.json
    """
    from deltacell.report.progress import progress_bar

    if make is not None:
        _make(files, make, source)
        return

    from deltacell.bench import trace as bench
    from deltacell.bench.hta import hta_environment
    from deltacell.report.bench import print_bench

    with progress_bar() as report:
        if hta is not None:
            report("making the environment of HolisticTraceAnalysis", 0, 0)
        python = None if hta is None else hta_environment(hta)
        result = bench.run(files, hta=python, progress=report)
    print_bench(result, "reading and explaining traces, in seconds and MiB")
    write_json(json, result)


def _make(files: list[Path], size: str, source: Path | None) -> None:
    from deltacell.bench.tile import find_real_trace, make_trace, parse_size
    from deltacell.errors import InputError
    from deltacell.report.progress import progress_bar

    if len(files) != 1:
        raise InputError(f"--make writes one trace, and {len(files)} were named")
    n_bytes = parse_size(size)
    real = find_real_trace() if source is None else source
    with progress_bar() as report:
        events = make_trace(real, files[0], n_bytes, progress=report)
    written = files[0].stat().st_size
    typer.echo(f"{files[0]}: {events:,} events, {written / 1e6:,.1f} MB, {real.name} repeated")
