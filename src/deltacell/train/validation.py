"""The validation of a training: which epochs have one, and with which weights."""

from __future__ import annotations

from contextlib import nullcontext

from deltacell.screen import Loader
from deltacell.train.checkpoints import PEARSON
from deltacell.train.state import TrainingState
from deltacell.train.task import Validation


class Validator:
    """Predicts the validation part after every few epochs and after the last one.

    The moving average of the weights is validated in place of the weights, if there is one.
    """

    def __init__(
        self,
        loader: Loader | None,
        *,
        every: int,
        epochs: int,
        best_by: str = PEARSON,
    ) -> None:
        self.loader = loader
        self.best_by = best_by  # the metric that early stopping and the schedule watch
        self.every = every
        self.epochs = epochs

    def is_due(self, n_epochs: int) -> bool:
        """Return whether there is a validation after so many epochs."""
        return self.loader is not None and (n_epochs % self.every == 0 or n_epochs == self.epochs)

    def __call__(self, state: TrainingState) -> Validation | None:
        """Return the validation after the current epoch; None if there is none."""
        if self.loader is None or not self.is_due(state.position.epoch + 1):
            return None
        with nullcontext() if state.average is None else state.average.in_place():
            return state.task.validate(self.loader)
