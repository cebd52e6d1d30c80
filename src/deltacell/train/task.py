"""The task of a training: a model with its loss, and its validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
import torch.distributed as dist
from torch import nn

from deltacell.cell import Cell
from deltacell.models.base import named_range
from deltacell.models.interface import Model, Prediction, TargetScale
from deltacell.models.losses import Loss, LossValue, world_size
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.propagate.transfer import HasTensors, pinned_to_device
from deltacell.screen import Batch, Genotypes, Loader
from deltacell.train.epoch_losses import Losses


class Prepared(NamedTuple):
    """A batch after the preparation on the host."""

    batch: Batch
    genotypes: Any  # what `Model.prepare` returns

    def to(self, device: torch.device) -> Prepared:
        """Return the batch on a device; every tensor is pinned and sent once, without waiting."""
        if device.type == "cpu":
            return self
        sent = pinned_to_device(device)
        batch = sent(self.batch)
        if isinstance(self.genotypes, Genotypes | HasTensors):
            return Prepared(batch, sent(self.genotypes))
        # A model of another package, whose batches have a method of their own.
        return Prepared(batch, self.genotypes.to(device, non_blocking=True))


class Task(nn.Module):
    """A model with its loss on standardised scores, as a module that DDP can wrap."""

    def __init__(
        self,
        model: Model,
        loss: Loss,
        cell: Cell,
        standard: TargetScale,
        timer: PhaseTimer | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.cell = cell
        self.standard = standard
        self.epoch = 0
        self._timer = NoTimer() if timer is None else timer

    def begin_epoch(self, epoch: int) -> None:
        """Tell a loss that changes over a training which epoch it is, from 0."""
        self.epoch = epoch

    def prepare(self, batch: Batch) -> Prepared:
        """Do the host's part of a step."""
        return Prepared(batch, self.model.prepare(self.cell, batch.genotypes))

    def forward(self, prepared: Prepared) -> Losses:
        """Return this rank's share of the loss of the global batch, and its parts."""
        prediction = self._predict(prepared)
        self._timer.switch("loss")
        with named_range("loss"):
            value = self._loss(prediction, prepared.batch)
        total = value.total
        if not len(prepared.batch):
            # Without genotypes few weights get gradients, but the other ranks wait for all.
            total = total + 0 * torch.stack([w.sum() for w in self.model.parameters()]).sum()
        return {"loss": total, **value.parts}

    @torch.no_grad()
    def validate(self, loader: Loader) -> Validation:
        """Predict the rows of an unshuffled loader; every rank returns all scores."""
        device = next(self.parameters()).device
        n_rows = len(loader.rows)
        # Each rank fills in its own rows; the sum over ranks has all rows, and the loss at the end.
        totals = torch.zeros(n_rows + 1, dtype=torch.float64, device=device)
        place_of_row = torch.full((len(loader.screen),), -1, dtype=torch.int64)
        place_of_row[torch.from_numpy(np.array(loader.rows))] = torch.arange(n_rows)
        place_of_row = place_of_row.to(device)
        n_done = 0
        was_training = self.training
        self.eval()
        try:
            for batch in loader:
                n_genotypes = min(loader.batch_size, loader.samples_per_epoch - n_done)
                n_done += n_genotypes
                if not len(batch):
                    continue
                prepared = self.prepare(batch).to(device)
                prediction = self._predict(prepared)
                scores = self.standard.undo(prediction.score)
                totals[place_of_row[prepared.batch.rows]] = scores.double()
                loss = self._loss(prediction, prepared.batch).total
                totals[-1] += loss.double() * n_genotypes
        finally:
            self.train(was_training)
        if world_size() > 1:
            dist.all_reduce(totals)
        values = totals.cpu().numpy()
        measured = loader.screen.column("score")[loader.rows].astype(np.float64)
        return Validation(measured, values[:-1], float(values[-1]) / max(1, n_done))

    def _predict(self, prepared: Prepared) -> Prediction:
        return self.model(self.cell, prepared.genotypes, wanted=self.loss.reads)

    def _loss(self, prediction: Prediction, batch: Batch) -> LossValue:
        targets = batch.targets.to(prediction.score)
        weights = batch.weights.to(prediction.score)
        return self.loss(prediction, targets, weights, epoch=self.epoch)


@dataclass(frozen=True, eq=False)
class Validation:
    """Measured and predicted scores of some rows, in the screen's unit."""

    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    loss: float

    def metrics(self) -> dict[str, float]:
        """Return the loss, the correlations (NaN if there are none) and the mean squared error."""
        both = pl.DataFrame({"measured": self.measured, "predicted": self.predicted})
        is_constant = len(both) < 2 or not (self.measured.std() > 0 and self.predicted.std() > 0)
        pearson = spearman = math.nan
        if not is_constant:
            pearson = both.select(pl.corr("measured", "predicted", method="pearson")).item()
            spearman = both.select(pl.corr("measured", "predicted", method="spearman")).item()
        mse = float(((self.measured - self.predicted) ** 2).mean()) if len(both) else math.nan
        return {"loss": self.loss, "pearson": pearson, "spearman": spearman, "mse": mse}
