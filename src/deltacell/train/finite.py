"""Losses and weights that are not finite, which stop a training before they are saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deltacell.base.errors import InputError
from deltacell.profile.record import CHECKPOINTS
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.data import TrainingData
from deltacell.train.task import Task

LOOK_EVERY = 256  # batches between checks of losses on a device, each of which waits for it
MOST_NAMED = 5  # genotypes in an error


@dataclass(frozen=True)
class _Noted:
    """A loss that has not been checked."""

    step: int
    rows: Tensor
    loss: Tensor


class FiniteGuard:
    """Raises if a loss or a weight is not finite, with the genotypes of the batch.

    Losses are kept on the device, and checked every `look_every` batches and before a checkpoint.
    """

    def __init__(self, task: Task, data: TrainingData, run: Path, look_every: int) -> None:
        self.task = task
        self.data = data
        self.run = run
        self.look_every = look_every
        self._noted: list[_Noted] = []
        self._last_rows = torch.empty(0, dtype=torch.int64)

    @classmethod
    def on(cls, device: torch.device, task: Task, data: TrainingData, run: Path) -> FiniteGuard:
        """Return the guard of a run, which seldom waits for a device other than the CPU."""
        return cls(task, data, run, look_every=1 if device.type == "cpu" else LOOK_EVERY)

    def note(self, step: int, rows: Tensor, loss: Tensor) -> None:
        """Take in the loss of a batch with some rows of the screen."""
        self._last_rows = rows
        self._noted.append(_Noted(step, rows, loss.detach()))
        if len(self._noted) >= self.look_every:
            self.check_losses()

    def check_losses(self) -> None:
        """Check all losses since the last check; on a device other than the CPU this waits."""
        noted = self._noted
        self._noted = []
        if not noted:
            return
        values = torch.stack([batch.loss for batch in noted]).tolist()
        for batch, value in zip(noted, values, strict=True):
            if not math.isfinite(value):
                raise self._not_finite(f"the loss is {value}", batch.step, batch.rows)

    def check_weights(self, step: int) -> None:
        """Check all weights after a step."""
        are_finite = [torch.isfinite(weight).all() for weight in self.task.parameters()]
        if not bool(torch.stack(are_finite).all()):
            raise self._not_finite("a weight is not finite", step, self._last_rows)

    def _not_finite(self, what: str, step: int, rows: Tensor) -> InputError:
        # Ranks other than 0 do not save, so their list of checkpoints would be out of date.
        last = Checkpoints(self.run / CHECKPOINTS).last
        what += (
            f" at step {step:,} (epoch {self.task.epoch + 1}); its batch has the genotypes "
            f"{self._names_of(rows)}"
        )
        fix = (
            f"The last good checkpoint is {'none' if last is None else last.file}. Try a smaller "
            "optimizer.lr or optimizer.clip, and check the scores of these genotypes."
        )
        return InputError(
            what,
            code="not-finite",
            where=self.run,
            fix=fix,
            step=step,
            epoch=self.task.epoch + 1,
            n_genotypes=len(rows),
        )

    def _names_of(self, rows: Tensor) -> str:
        label = self.data.cell.genes.label
        names = []
        for genes in self.data.screen.genotypes.take(rows.cpu()):
            names.append(" + ".join(label(int(gene)) for gene in genes))
        n_more = len(names) - MOST_NAMED
        more = f" and {n_more:,} more" if n_more > 0 else ""
        return ", ".join(names[:MOST_NAMED]) + more
