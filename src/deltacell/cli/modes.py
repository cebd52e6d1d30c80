"""`deltacell modes`: what each part of a step costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.output import write_json
from deltacell.cli.settings import complete_override


def modes(
    overrides: Annotated[
        list[str],
        typer.Argument(
            help="A config as for `deltacell train`: experiment=demo.",
            autocompletion=complete_override,
        ),
    ],
    steps: Annotated[int, typer.Option(help="Batches per mode.")] = 30,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Run every execution mode of a config briefly: rates, marginal costs, exposed times.

    Example: deltacell modes experiment=demo --steps 20
    """
    from dataclasses import asdict

    from deltacell.report.bench import print_marginals, print_phases, print_rates
    from deltacell.report.progress import progress_bar
    from deltacell.train.compose import compose
    from deltacell.train.modes import marginals, run_modes

    compose(overrides)
    with progress_bar() as report:
        times = run_modes(overrides, steps, report)
    parts = marginals(times)
    print_rates([(time.mode, time.summary) for time in times])
    print_marginals(parts)
    print_phases(next(time.summary for time in times if time.mode == "train"))
    write_json(json, {"modes": [*map(asdict, times)], "marginals": [*map(asdict, parts)]})
