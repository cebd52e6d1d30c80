"""A training on the terminal."""

from __future__ import annotations

from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callback, EpochResult
from deltacell.train.rendering import BarOfTraining
from deltacell.train.state import TrainingState
from deltacell.train.step import StepResult


class ProgressCallback(Callback):
    """Shows the steps of the first rank in a progress bar, and a line per epoch."""

    def __init__(self, bar: BarOfTraining, epochs: int, timer: PhaseTimer) -> None:
        self.bar = bar
        self.epochs = epochs
        self.timer = timer

    def before_epoch(self, state: TrainingState) -> None:
        """Begin an epoch of the bar."""
        self.timer.switch("logging")
        position = state.position
        self.bar.begin(position.epoch, self.epochs, position.batch, len(state.loader))

    def after_step(self, state: TrainingState, result: StepResult) -> None:
        """Advance the bar by the batches of a step."""
        self.timer.switch("logging")
        self.bar.step(result.loss, result.n_genotypes, result.n_batches)

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Show the metrics of the epoch."""
        self.timer.switch("logging")
        self.bar.epoch(result.row, state.position.step)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()
