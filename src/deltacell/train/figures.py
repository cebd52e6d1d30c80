"""Figures of a training every few epochs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import FIGURES
from deltacell.report.figures import draw_learning, draw_scores
from deltacell.train.metrics_file import MetricsFile
from deltacell.train.validate import Validation


class Figures:
    """A callback that draws the learning curve, and the validation's scores.

    Parameters
    ----------
    run
        The run's directory.
    metrics
        Its metrics.
    every
        Epochs from one set of figures to the next; none where 0.
    timer
        Of the phases: drawing goes with checkpoints, not with logging.
    """

    def __init__(
        self, run: Path, metrics: MetricsFile, every: int, timer: PhaseTimer | NoTimer
    ) -> None:
        self.folder = run / FIGURES
        self.metrics = metrics
        self.every = every
        self.timer = timer

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Nothing to draw."""

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Nothing to draw."""

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Draw, where it is time to."""
        if not self.every or int(row["epoch"]) % self.every:
            return
        with self.timer.phase("checkpoint"):
            self.folder.mkdir(exist_ok=True)
            draw_learning(self.metrics.rows, self.folder / "learning.svg")
            if validation is not None:
                draw_scores(
                    validation.measured,
                    validation.predicted,
                    self.folder / f"validation-epoch{int(row['epoch']):04d}.png",
                )

    def close(self) -> None:
        """Nothing is left to draw."""
