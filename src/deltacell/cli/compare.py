"""`deltacell compare` and `slurm compare`: why one training is slower than another, by trying."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import (
    ConfigDir,
    Html,
    Json,
    Markdown,
    option,
    write_json,
    write_rendered,
)

A = Annotated[str, typer.Argument(help="A run directory, or quoted overrides: 'experiment=demo'.")]
B = Annotated[str, typer.Argument(help="The training to compare it with.")]
Minutes = Annotated[float, option("Time budget; both are tried at least once.", min=0.0)]
Turns = Annotated[int, option("Maximum number of turns, each of all trials.", min=1)]
Steps = Annotated[int, option("Maximum number of steps per trial.", min=6)]
Out = Annotated[Path, option("Directory of the finished trials; rerun to resume.")]
OUT = Path("runs/compared")


def compare(
    a: A,
    b: B,
    minutes: Minutes = 10.0,
    turns: Turns = 3,
    steps: Steps = 30,
    out: Out = OUT,
    config_dir: ConfigDir = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
) -> None:
    """Try two trainings and variants of them in turns, and say what makes one of them slower.

    Every setting that differs is changed alone and together with the others, every part of a step
    is left out, and what the slower model can vary is varied. Rerun the command to resume.

    Example: deltacell compare runs/before runs/after --minutes 10
    """
    from deltacell.report.comparison import (
        comparison_page,
        markdown_comparison,
        print_comparison,
    )
    from deltacell.report.progress import progress_bar
    from deltacell.train.comparing.compare import compare_trainings
    from deltacell.train.comparing.sides import read_sides

    first, second = read_sides(a, b, config_dir)
    with progress_bar() as report:
        comparison = compare_trainings(
            first,
            second,
            out,
            minutes=minutes,
            turns=turns,
            steps=steps,
            progress=report,
        )
    result = comparison.to_json()
    write_json(json, result)
    write_rendered(markdown, markdown_comparison, result)
    write_rendered(html, comparison_page, result)
    print_comparison(result)
