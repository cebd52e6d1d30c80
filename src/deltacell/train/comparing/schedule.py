"""Trials in turns: every arm once, then every arm again, until the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from deltacell.base.text import Progress
from deltacell.train.comparing.table import TrialTable
from deltacell.train.comparing.trials import AnyArm, TrialRunner

FIRST_STEPS = 12  # of the first trial of an arm, whose time per step is not known yet
LEAST_STEPS = 6
SECONDS_OF_STEPS = 20.0  # at most, unless `LEAST_STEPS` take longer
N_BASES = 2  # the arms of both trainings, which are tried whatever the budget


def run_arms(
    arms: Sequence[AnyArm],
    table: TrialTable,
    run: TrialRunner,
    *,
    turns: int,
    budget_s: float,
    steps: int,
    progress: Progress,
) -> None:
    """Run what the table lacks; the time of finished trials counts, also from before a kill.

    Both trainings and their variants take turns, so that a load that changes slowly meets all.
    """
    n_trials = turns * len(arms)
    for turn in range(turns):
        for number, arm in enumerate(arms):
            if table.has(arm.name, turn):
                continue
            is_required = turn == 0 and number < N_BASES
            if not is_required and table.seconds + _expected(arm, table) > budget_s:
                continue
            progress(arm.name, turn * len(arms) + number, n_trials)
            table.add(run(arm, turn, steps_for(arm, table, steps)))


def _expected(arm: AnyArm, table: TrialTable) -> float:
    """Return the seconds that a trial will probably take, by others of the arm or of all arms."""
    seconds = [row.seconds for row in table.of(arm.name) or table.rows]
    return median(seconds) if seconds else 0.0


def steps_for(arm: AnyArm, table: TrialTable, most: int) -> int:
    """Return the number of steps of a trial, fewer if a step takes long."""
    rows = [row for row in table.of(arm.name) if row.step_s]
    if not rows:
        return min(FIRST_STEPS, most)
    seconds = median(rows[0].step_s)
    return max(LEAST_STEPS, min(most, int(SECONDS_OF_STEPS / max(seconds, 1e-9))))
