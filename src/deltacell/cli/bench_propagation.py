"""`deltacell bench propagation`: what a mutant costs by each way of propagating it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def propagation(
    batch: Annotated[int, typer.Option(help="Genotypes per step.")] = 8,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 3,
    mutant_layers: Annotated[
        int | None, typer.Option(help="The last layers that see the deletion; all by default.")
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas between; all where not given.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Turns; slow strategies have two at most.")] = 3,
    max_bytes: Annotated[
        int | None, typer.Option(help="Memory budget of the strategies that take one.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="On the demo cell; no bar applies.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it, as PNG or SVG.")] = None,
) -> None:
    """Compare all ways of propagating mutants: time, memory, scores and gradients.

    On the yeast-sized cell the slow ways take minutes and some gigabytes per step.

    Example: deltacell bench propagation --quick --strategies subgraph,shared
    """
    from deltacell.bench import propagation as bench
    from deltacell.bench.figures import draw_ladder
    from deltacell.report.bench import print_bench
    from deltacell.report.figures import check_figure
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import console

    check_figure(figure)
    names = None if strategies is None else [n.strip() for n in strategies.split(",") if n.strip()]
    with progress_bar() as report:
        result = bench.run(
            batch,
            layers,
            names,
            repeats,
            report,
            max_bytes,
            mutant_layers=mutant_layers,
            quick=quick,
        )
    print_bench(result, "mutants, forward and backward")
    least, best = result["roofline_s_per_genotype"], result["ratios"]["best"]
    console().print(
        f"roofline {least:.4g} s per genotype; the best, {best}, takes "
        f"{result['ratios']['best_times_roofline']:.3g} times that",
        markup=False,
    )
    write_json(json, result)
    if figure is not None:
        draw_ladder(result, figure)
