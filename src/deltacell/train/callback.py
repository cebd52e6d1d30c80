"""What is told of a training while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from deltacell.train.validate import Validation


class Callback(Protocol):
    """Someone to tell: a progress bar, a logger, the figures."""

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Hear that an epoch begins, or goes on.

        Parameters
        ----------
        epoch, epochs
            Which, counted from 0, of how many.
        step, steps
            Batches of it that are done, and all of them.
        """
        ...

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Hear of a batch.

        Parameters
        ----------
        loss
            Still on its device; looking at it may wait.
        genotypes
            Of the global batch.
        """
        ...

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Hear of the end of an epoch.

        Parameters
        ----------
        row
            Its metrics.
        validation
            Its scores, where it was validated.
        step
            Optimizer steps so far.
        """
        ...

    def close(self) -> None:
        """Hear that it is over, for whatever reason."""
        ...
