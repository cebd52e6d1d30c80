"""The learning rate in closed form, so that resumed and prolonged trainings need no history."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deltacell.train.config import Config, ScheduleConfig
from deltacell.train.position import Position


@dataclass(frozen=True)
class LearningRate:
    r"""The learning rate as a function of the position of a training.

    After :math:`t` of :math:`T` steps, of the training for ``cosine`` and of the period for
    ``warm_restarts``, it is

    .. math:: r_{min} + (r - r_{min}) (1 + \cos(\pi t / T)) / 2

    ``plateau`` multiplies the rate by ``factor`` at every drop, see `Position.note_validation`.
    """

    schedule: ScheduleConfig
    initial: float
    epochs: int
    steps_per_epoch: int

    @classmethod
    def of(cls, config: Config, steps_per_epoch: int) -> LearningRate:
        """Return the learning rate of a config."""
        return cls(config.schedule, config.optimizer.lr, config.trainer.epochs, steps_per_epoch)

    def __call__(self, position: Position) -> float:
        """Return the learning rate of the step that follows a position."""
        schedule = self.schedule
        match schedule.name:
            case "cosine":
                n_steps = self.epochs * self.steps_per_epoch
                return self._on_cosine(min(position.step, n_steps) / n_steps)
            case "warm_restarts":
                n_steps = schedule.period * self.steps_per_epoch
                return self._on_cosine(position.step % n_steps / n_steps)
            case "plateau":
                return max(schedule.min_lr, self.initial * schedule.factor**position.drops)
            case _:
                return self.initial

    def _on_cosine(self, share: float) -> float:
        """Return the rate after a share of a period, from the initial rate to the lowest."""
        lowest = self.schedule.min_lr
        return lowest + (self.initial - lowest) * (1 + math.cos(math.pi * share)) / 2
