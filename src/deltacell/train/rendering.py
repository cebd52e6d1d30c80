"""What shows a training, which the caller of `deltacell.train.run.train` passes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from torch import Tensor

from deltacell.base.arrays import Doubles
from deltacell.base.text import Progress


class BarOfTraining(Protocol):
    """The progress bar of a training."""

    def begin(self, epoch: int, epochs: int, batch: int, batches: int) -> None:
        """Begin an epoch, from 0, at a batch."""

    def step(self, loss: Tensor | None, n_genotypes: int, n_batches: int) -> None:
        """Advance by the batches of an optimizer step, the last of which has a loss."""

    def epoch(self, row: Mapping[str, float], step: int) -> None:
        """Show the metrics of an epoch."""

    def close(self) -> None:
        """Remove the bar."""


class Rendering(Protocol):
    """Shows a run while it is trained; `deltacell.report.training` is one."""

    def training_bar(self, ranks: int) -> BarOfTraining:
        """Return a bar that shows the loss of a rank times the number of ranks."""

    def progress_bar(self) -> AbstractContextManager[Progress]:
        """Return a bar that shows how far a fit is."""

    def draw_learning(self, rows: Sequence[Mapping[str, float]], path: Path) -> None:
        """Draw the loss and the validation metric of all epochs."""

    def draw_scores(self, measured: Doubles, predicted: Doubles, path: Path) -> None:
        """Draw the predicted against the measured scores of a validation."""
