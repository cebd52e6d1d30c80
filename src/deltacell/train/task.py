"""The task of a training: a model with its loss, its validation, and the training's position."""

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
from deltacell.models.interface import Model, Prediction, TargetScale
from deltacell.models.losses import Loss, LossValue, world_size
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.screen import Batch, Loader
from deltacell.train.config import Config


class Prepared(NamedTuple):
    """A batch after the preparation on the host."""

    batch: Batch
    genotypes: Any  # what `Model.prepare` returns

    def to(self, device: torch.device) -> Prepared:
        if device.type == "cpu":
            return self
        batch = self.batch.pin_memory().to(device, non_blocking=True)
        return Prepared(batch, self.genotypes.to(device, non_blocking=True))


class Task(nn.Module):
    """A model with its loss on standardised scores, as a module that DDP can wrap."""

    def __init__(self, model: Model, loss: Loss, cell: Cell, standard: TargetScale) -> None:
        super().__init__()
        self.model, self.loss, self.cell, self.standard = model, loss, cell, standard
        self.epoch = 0
        self.timer: PhaseTimer = NoTimer()

    def prepare(self, batch: Batch) -> Prepared:
        return Prepared(batch, self.model.prepare(self.cell, batch.genotypes))

    def forward(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """Return this rank's share of the loss of the global batch, and its parts."""
        prediction = self._predict(prepared)
        self.timer.switch("loss")
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
        # Each rank fills in its own rows; the sum over ranks has all rows.
        predicted = torch.zeros(len(loader.rows) + 1, dtype=torch.float64, device=device)
        place = torch.full((len(loader.screen),), -1, dtype=torch.int64)
        place[torch.from_numpy(np.array(loader.rows))] = torch.arange(len(loader.rows))
        place = place.to(device)
        done, was_training = 0, self.training
        self.eval()
        try:
            for batch in loader:
                n = min(loader.batch_size, loader.samples_per_epoch - done)
                done += n
                if len(batch):
                    prepared = self.prepare(batch).to(device)
                    found = self._predict(prepared)
                    score = self.standard.undo(found.score)
                    predicted[place[prepared.batch.rows]] = score.double()
                    predicted[-1] += self._loss(found, prepared.batch).total.double() * n
        finally:
            self.train(was_training)
        if world_size() > 1:
            dist.all_reduce(predicted)
        values = predicted.cpu().numpy()
        measured = loader.screen.column("score")[loader.rows].astype(np.float64)
        return Validation(measured, values[:-1], float(values[-1]) / max(1, done))

    def _predict(self, prepared: Prepared) -> Prediction:
        return self.model(self.cell, prepared.genotypes, wanted=self.loss.reads)

    def _loss(self, prediction: Prediction, batch: Batch) -> LossValue:
        score = prediction.score
        targets, weights = batch.targets.to(score), batch.weights.to(score)
        return self.loss(prediction, targets, weights, epoch=self.epoch)


@dataclass(frozen=True, eq=False)
class Validation:
    """Measured and predicted scores of some rows, in the screen's unit."""

    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    loss: float

    def metrics(self) -> dict[str, float]:
        both = pl.DataFrame({"measured": self.measured, "predicted": self.predicted})
        constant = len(both) < 2 or not (self.measured.std() > 0 and self.predicted.std() > 0)
        pearson, spearman = (
            math.nan if constant else both.select(pl.corr(*both.columns, method=method)).item()
            for method in ("pearson", "spearman")
        )
        mse = float(((self.measured - self.predicted) ** 2).mean()) if len(both) else math.nan
        return {"loss": self.loss, "pearson": pearson, "spearman": spearman, "mse": mse}


@dataclass
class Position:
    """The position of a training, which determines its learning rate and its end."""

    epoch: int = 0  # complete epochs
    batch: int = 0  # batches of the current epoch
    step: int = 0  # optimizer steps
    best: float = -math.inf  # highest validation metric
    waited: int = 0  # validations since the best
    drops: int = 0  # how often ``plateau`` has lowered the rate
    seconds: float = 0.0  # training time, over all attempts

    def is_end(self, config: Config) -> bool:
        patience = config.trainer.patience
        enough = patience is not None and self.waited >= patience
        return enough or self.epoch >= config.trainer.epochs

    def validated(self, metric: float, config: Config) -> None:
        """Record a validation metric; higher is better, and NaN is never better."""
        better = metric > self.best
        self.best = metric if better else self.best
        self.waited = 0 if better else self.waited + 1
        self.drops += self.waited > 0 and self.waited % (config.schedule.patience + 1) == 0

    def learning_rate(self, config: Config, steps_per_epoch: int) -> float:
        """Return the learning rate of the next step.

        It is ``min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2`` after ``t`` of ``T`` steps, of
        the training for ``cosine`` and of the period for ``warm_restarts``. ``plateau`` multiplies
        it by ``factor`` after ``patience`` + 1 validations in a row without improvement.
        """
        asked, rate = config.schedule, config.optimizer.lr
        if asked.name == "constant":
            return rate
        if asked.name == "plateau":
            return max(asked.min_lr, rate * asked.factor**self.drops)
        restarts = asked.name == "warm_restarts"
        period = steps_per_epoch * (asked.period if restarts else config.trainer.epochs)
        done = self.step % period if restarts else min(self.step, period)
        return asked.min_lr + (rate - asked.min_lr) * (1 + math.cos(math.pi * (done / period))) / 2
