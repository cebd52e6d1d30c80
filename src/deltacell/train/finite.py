"""A loss that is no number stops the run, and says at which genotypes."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch

from deltacell.errors import DeltacellError

LOOK_EVERY = 16
"""Steps from one look at a device's flags to the next."""


class NotFiniteError(DeltacellError):
    """The loss, or something else, became infinite or no number.

    Parameters
    ----------
    step, epoch
        Where, counted from 1.
    value
        What it was.
    rows
        Rows of the screen in this rank's part of the batch.
    what
        What it is that is not finite.
    """

    def __init__(
        self, step: int, epoch: int, value: float, rows: torch.Tensor, what: str = "the loss"
    ) -> None:
        self.step, self.epoch, self.value, self.rows = step, epoch, value, rows
        super().__init__(f"{what} is {value} at step {step:,} (epoch {epoch})")


class FiniteGuard:
    """Looks at every loss: at once on a CPU, and on a device without making the step wait.

    Parameters
    ----------
    device
        Where the losses are.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._recent: deque[tuple[int, int, torch.Tensor, torch.Tensor]] = deque()
        self._looked: tuple[Any, torch.Tensor, int] | None = None

    def see(self, loss: torch.Tensor, step: int, epoch: int, rows: torch.Tensor) -> None:
        """Take note of a step's loss; raise where one that has arrived is not finite.

        Parameters
        ----------
        loss
            A scalar.
        step, epoch
            Of the step, counted from 1.
        rows
            Of the screen, that the batch has.
        """
        if self.device.type == "cpu":
            value = float(loss.detach())
            if not math.isfinite(value):
                raise NotFiniteError(step, epoch, value, rows)
            return
        self._recent.append((step, epoch, rows, loss.detach()))
        if self._looked is not None and self._looked[0].query():
            self._judge(self._looked[1], self._looked[2])
            self._looked = None
        if self._looked is None and len(self._recent) >= LOOK_EVERY:
            values = torch.stack([entry[3] for entry in self._recent])
            copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            copy.copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._looked = (event, copy, len(self._recent))

    def settle(self) -> None:
        """Look at all that was seen; waits for the device, so before a checkpoint only."""
        if self._recent:
            values = torch.stack([entry[3] for entry in self._recent]).cpu()
            self._looked = None
            self._judge(values, len(self._recent))

    def _judge(self, values: torch.Tensor, n: int) -> None:
        for value in values.tolist()[:n]:
            step, epoch, rows, _ = self._recent.popleft()
            if not math.isfinite(value):
                raise NotFiniteError(step, epoch, value, rows.cpu())
