"""The stages of `deltacell start` on the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from deltacell.api.start import Stage, StartObserver
from deltacell.cli.program import tell
from deltacell.cli.train import show_outcome
from deltacell.data.import_folder import Imported
from deltacell.evaluation.runs import EvaluatedRuns
from deltacell.profile.refitted import Refitted
from deltacell.report.data import print_import
from deltacell.report.evaluate import print_evaluation
from deltacell.report.predict import print_ranking
from deltacell.train.config import Config
from deltacell.train.outcome import Outcome


class StartScreen(StartObserver):
    """Prints each stage, the command that does the same, and its results."""

    def begin(self, stage: Stage) -> None:
        """Print the title of a stage, and its command unless it is skipped."""
        skipped = ", which is done already" if stage.exists else ""
        title = f"{stage.number} of {stage.of}: {stage.title}{skipped}"
        typer.secho(f"\n{title}", bold=True)
        if not stage.exists:
            command = shlex.join(["deltacell", *stage.command])
            typer.secho(f"$ {command}\n", dim=True)

    def tell(self, sentence: str) -> None:
        """Print to stderr."""
        tell(sentence)

    def imported(self, imported: Imported) -> None:
        """Print what became of each file."""
        print_import(imported.account())

    def trained(self, outcome: Outcome, config: Config) -> None:
        """Print how the training ended."""
        show_outcome(outcome, config)

    def evaluated(self, evaluated: EvaluatedRuns) -> None:
        """Print the tables of the test."""
        print_evaluation(evaluated.to_json())

    def refitted(self, refitted: Refitted) -> None:
        """Print what the ranking is based on."""
        typer.echo(refitted.sentence)

    def ranked(self, page_data: dict[str, Any], path: Path) -> None:
        """Print the head of the ranking."""
        print_ranking(page_data)
        typer.echo(f"All {page_data['counts']['rows']:,} rows: {path}")
