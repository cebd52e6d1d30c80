"""`deltacell bench explain`: how often the first sentence names the true cause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def explain(
    only: Annotated[
        str | None, typer.Option(help="Run only kinds of cause with this in their name.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another set of cases.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Explain simulated traces whose cause is known, and count the right first sentences.

    Example: deltacell bench explain --json explain.json
    """
    from deltacell.bench import explain as bench
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = bench.run(seed=seed, only=only, progress=report)
    print_bench(result, "first sentences by kind of cause")
    write_json(json, result)
