"""`deltacell bench scaling`: how the cost of mutants grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def scaling(
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas; by default shared and delta.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use tiny cells, where exponents mean nothing.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it, as PNG or SVG.")] = None,
) -> None:
    """Measure how time grows with the batch, the edges, the layers, the deletions and the cell.

    The largest cell has the size of a human one: 20,000 genes and 12 million edges.

    Example: deltacell bench scaling --json scaling.json --figure scaling.svg
    """
    from deltacell.bench import scaling as bench
    from deltacell.bench.figures import draw_scaling
    from deltacell.report.bench import print_bench
    from deltacell.report.figures import check_figure
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import print_table

    check_figure(figure)
    names = None if strategies is None else [n.strip() for n in strategies.split(",") if n.strip()]
    with progress_bar() as report:
        result = bench.run(report, quick, strategies=names)
    print_bench(result, "a step, while one size grows")
    print_table(
        "fitted: seconds per step = factor * size ^ exponent",
        list(result["fits"][0]),
        [list(fit.values()) for fit in result["fits"]],
    )
    write_json(json, result)
    if figure is not None:
        draw_scaling(result, figure)
