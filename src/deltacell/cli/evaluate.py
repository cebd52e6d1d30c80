"""`deltacell evaluate`: runs and baselines side by side, on the test part or another screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import write_json


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="Directories of runs; seeds of one name join.")
    ],
    baselines: Annotated[
        str, typer.Option(help="Names with commas between; fitted on the same training part.")
    ] = "global_mean,additive,boosted_trees",
    weights: Annotated[
        str, typer.Option(help="best, chosen by validation, or last; never by the test part.")
    ] = "best",
    samples: Annotated[
        int | None, typer.Option(help="Test rows to look at, the same for all; all by default.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="A score at or below it is a hit, for AUROC and AUPR.")
    ] = -0.08,
    on: Annotated[
        Path | None,
        typer.Option(help="Test on this screen, or import of one; leaves out what was trained on."),
    ] = None,
    beyond: Annotated[
        float, typer.Option(help="With --on: also test the rows at least this far from 0.")
    ] = 0.08,
    zeros: Annotated[
        int,
        typer.Option(
            help="Of a list of hits: tested pairs without a hit to draw. This assumes that every "
            "query gene was crossed with every array gene; 0 turns it off."
        ),
    ] = 100_000,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables there.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw into this directory: density, calibration, …")
    ] = None,
) -> None:
    """Test runs and baselines on the same rows: metrics with intervals, and which one is best.

    Example: deltacell evaluate runs/demo-seed0 runs/demo-seed1 --figures figures
    """
    from deltacell.cli.program import write_text
    from deltacell.evaluate import draw_figures
    from deltacell.report.evaluate import markdown_evaluation, print_evaluation
    from deltacell.verbs import evaluate as verb

    names = [name.strip() for name in baselines.split(",") if name.strip()]
    found = verb(
        runs,
        baselines=names,
        on=on,
        weights=weights,
        samples=samples,
        threshold=threshold,
        beyond=beyond,
        zeros=zeros,
    )
    result = found.evaluation.to_json()
    # Files first: a reader of the output that goes away, as `head` does, must not cost them.
    write_json(json, result)
    if markdown is not None:
        write_text(markdown, markdown_evaluation(result), what="the tables")
    if figures is not None:
        draw_figures(
            found.data.cell,
            found.data.screen,
            found.split,
            found.predictions,
            figures,
            weights=found.weights,
        )
    print_evaluation(result)
