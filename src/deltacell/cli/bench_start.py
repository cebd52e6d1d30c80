"""`deltacell bench start`: how long the program takes to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def start(
    data: Annotated[
        Path | None, typer.Argument(help="What `data info` shows; the demo by default.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Starts of each; the least counts.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
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
