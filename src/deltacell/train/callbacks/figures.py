"""Figures of a training, drawn every few epochs."""

from __future__ import annotations

from pathlib import Path

from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callback, EpochResult
from deltacell.train.rendering import Rendering
from deltacell.train.state import TrainingState


class FiguresCallback(Callback):
    """Draws the learning curve and the scores of the validation into a folder."""

    def __init__(self, rendering: Rendering, folder: Path, every: int, timer: PhaseTimer) -> None:
        self.rendering = rendering
        self.folder = folder
        self.every = every
        self.timer = timer

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Draw the figures if this epoch is one that has them."""
        n_epochs = state.position.epoch
        if n_epochs % self.every:
            return
        self.timer.switch("checkpoint")
        self.folder.mkdir(exist_ok=True)
        self.rendering.draw_learning(state.rows, self.folder / "learning.svg")
        if result.validation is not None:
            self.rendering.draw_scores(
                result.validation.measured,
                result.validation.predicted,
                self.folder / f"validation-epoch{n_epochs:04d}.png",
            )
