"""When a training ends: after its epochs, after its batches, or when it stops improving."""

from __future__ import annotations

from dataclasses import dataclass

from deltacell.train.config import Config
from deltacell.train.mode import MODES
from deltacell.train.position import Position

MODE_STEPS = 50  # batches in a mode that `is_limited`, unless the config says otherwise


@dataclass(frozen=True)
class Limits:
    """The end of a training."""

    epochs: int
    batches: int | None = None  # of an attempt
    patience: int | None = None  # validations in a row without improvement

    @classmethod
    def of(cls, config: Config, batches_per_epoch: int) -> Limits:
        """Return the limits of a config; a mode other than ``train`` runs some batches only."""
        if not MODES[config.mode].is_limited:
            return cls.of_training(config)
        n_batches = config.mode_steps or MODE_STEPS
        return cls(epochs=-(-n_batches // batches_per_epoch), batches=n_batches)

    @classmethod
    def of_training(cls, config: Config) -> Limits:
        """Return the limits of a config in the mode ``train``."""
        return cls(config.trainer.epochs, config.mode_steps, config.trainer.patience)

    def finished(self, position: Position) -> bool:
        """Return whether a position is the end of the training."""
        has_waited = self.patience is not None and position.waited >= self.patience
        return has_waited or position.epoch >= self.epochs

    def spent(self, batches: int) -> bool:
        """Return whether an attempt that has computed so many batches has to end."""
        return self.batches is not None and batches >= self.batches
