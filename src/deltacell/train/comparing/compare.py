"""The comparison of two trainings by trials."""

from __future__ import annotations

from pathlib import Path

from deltacell.base.errors import DeltacellError
from deltacell.base.files import locked
from deltacell.base.text import Progress
from deltacell.train.comparing.arms import arms_of, meaning_of
from deltacell.train.comparing.result import TriedComparison, attribute
from deltacell.train.comparing.schedule import run_arms
from deltacell.train.comparing.sides import TriedSide
from deltacell.train.comparing.table import TrialTable
from deltacell.train.comparing.trials import ProcessRunner, TrialRunner

MINUTES = 10.0
TURNS = 3
STEPS = 30


def compare_trainings(
    a: TriedSide,
    b: TriedSide,
    folder: Path,
    *,
    minutes: float = MINUTES,
    turns: int = TURNS,
    steps: int = STEPS,
    run: TrialRunner | None = None,
    progress: Progress = lambda what, done, total: None,
) -> TriedComparison:
    """Compare two trainings by short trials of both, interleaved with those of variants.

    Finished trials are kept in ``folder / "trials.json"``, so a comparison that was killed resumes.

    Parameters
    ----------
    minutes
        The budget. Both trainings are tried once whatever it is.
    turns
        How often everything is tried, at most.
    steps
        Of a trial, at most; fewer if a step takes long.
    run
        Runs a trial; by default in a process of its own.
    """
    changes, arms = arms_of(a, b)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", whose="comparison"):
        table = TrialTable(folder, meaning_of(a, b, steps))
        run_arms(
            arms,
            table,
            ProcessRunner(folder) if run is None else run,
            turns=turns,
            budget_s=60 * minutes,
            steps=steps,
            progress=progress,
        )
        for side, name in (("a", a.name), ("b", b.name)):
            for row in table.of(side):
                if row.error is not None:
                    raise DeltacellError(f"the trial of {name} failed: {row.error}")
        return attribute((a.name, b.name), changes, arms, table)
