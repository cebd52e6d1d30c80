"""What is optimised: a model with its loss; its validation, and the learning rate."""

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
from deltacell.models import (
    Dango,
    DangoLoss,
    HeteroCell,
    LogCosh,
    Loss,
    LossValue,
    PointDistributionContrast,
    Prediction,
)
from deltacell.models.losses import world_size
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.propagate import Deleted
from deltacell.screen import Batch, Genotypes, Loader
from deltacell.train.config import Config, options_of
from deltacell.train.data import Standard


class Prepared(NamedTuple):
    """A batch with the host's work for the model done."""

    batch: Batch
    genotypes: Genotypes | Deleted

    def to(self, device: torch.device) -> Prepared:
        if device.type == "cpu":
            return self
        batch = self.batch.pin_memory().to(device, non_blocking=True)
        return Prepared(batch, self.genotypes.to(device, non_blocking=True))


class Task(nn.Module):
    """A model with its loss on standardised scores, as one module that DDP can wrap."""

    def __init__(self, model: nn.Module, loss: Loss, cell: Cell, standard: Standard) -> None:
        super().__init__()
        self.model, self.loss, self.cell, self.standard = model, loss, cell, standard
        self.epoch = 0
        self.timer: PhaseTimer = NoTimer()

    def prepare(self, batch: Batch) -> Prepared:
        if isinstance(self.model, HeteroCell):
            return Prepared(batch, self.model.prepare(self.cell, batch.genotypes))
        return Prepared(batch, batch.genotypes)

    def forward(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """Return the loss, whose sum over ranks is that of the global batch, and its parts."""
        prediction = self._predict(prepared)
        self.timer.switch("loss")
        value = self._loss(prediction, prepared.batch)
        total = value.total
        if not len(prepared.batch) and isinstance(self.model, HeteroCell):
            # A rank without mutants reaches few weights, but the others wait for all gradients.
            total = total + 0 * torch.stack([w.sum() for w in self.model.parameters()]).sum()
        return {"loss": total, **value.parts}

    @torch.no_grad()
    def validate(self, loader: Loader) -> Validation:
        """Return the scores of an unshuffled loader's rows on all ranks."""
        device = next(self.parameters()).device
        # Each rank fills in its own rows, so that the sum over ranks has all of them.
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
        options = {}
        if isinstance(self.model, Dango):
            options["reconstruct"] = isinstance(self.loss, DangoLoss)
        prediction: Prediction = self.model(self.cell, prepared.genotypes, **options)
        return prediction

    def _loss(self, prediction: Prediction, batch: Batch) -> LossValue:
        score = prediction.score
        targets, weights = batch.targets.to(score), batch.weights.to(score)
        return self.loss(prediction, targets, weights, epoch=self.epoch)


@dataclass(frozen=True, eq=False)
class Validation:
    """What a model predicts for some rows of a screen, in its unit."""

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


class Schedule:
    """The learning rate of every optimizer step.

    With ``t`` the steps done, and ``T`` all steps (``cosine``) or those of the current period
    (``warm_restarts``), the rate is ``min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2``.
    ``plateau`` multiplies the rate after more than ``patience`` validations in a row without a
    better one.
    """

    def __init__(self, config: Config, steps_per_epoch: int) -> None:
        self.config, self.lr = config.schedule, config.optimizer.lr
        self.steps_per_epoch, self.epochs = steps_per_epoch, config.trainer.epochs
        # What is not a function of the steps done, and is saved.
        self.plateau: dict[str, Any] = {"factor": 1.0, "best": -math.inf, "waited": 0}

    def rate(self, done: int) -> float:
        name, least = self.config.name, self.config.min_lr
        if name in ("constant", "plateau"):
            return max(least, self.lr * float(self.plateau["factor"]))
        period = self.steps_per_epoch * self.epochs
        if name == "warm_restarts":
            period = self.steps_per_epoch * self.config.period
            done %= period
        cosine = (1 + math.cos(math.pi * min(done / period, 1.0))) / 2
        return least + (self.lr - least) * cosine

    def validated(self, metric: float) -> None:
        """Take note of a validation; higher is better, and NaN is not."""
        state = self.plateau
        better = metric > state["best"]
        state["best"] = metric if better else state["best"]
        state["waited"] = 0 if better else state["waited"] + 1
        if self.config.name == "plateau" and state["waited"] > self.config.patience:
            state["factor"] *= self.config.factor
            state["waited"] = 0


def build_loss(config: Config) -> Loss:
    options = options_of(config.loss)
    if config.loss.name == "log_cosh":
        return LogCosh()
    if config.loss.name == "dango":
        return DangoLoss(**options)
    width: int = config.model.hidden  # type: ignore[attr-defined]
    return PointDistributionContrast(**options, width=width, max_epochs=config.trainer.epochs)
