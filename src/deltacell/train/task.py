"""What is optimised: a model with its loss, the average of its weights, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

from deltacell.cell import Cell
from deltacell.models import Dango, DangoLoss, HeteroCell, Loss, LossValue, Prediction
from deltacell.models.base import parameter_groups
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.propagate import Deleted
from deltacell.screen import Batch, Genotypes, Loader
from deltacell.train.config import OptimizerConfig, ScheduleConfig
from deltacell.train.data import Standard
from deltacell.train.processes import world_size


class Prepared:
    """A batch with the host's work for the model done.

    Not a dataclass, because Fabric would take those apart on their way into the model.
    """

    __slots__ = ("batch", "genotypes")

    def __init__(self, batch: Batch, genotypes: Genotypes | Deleted) -> None:
        self.batch = batch
        self.genotypes = genotypes

    def to(self, device: torch.device) -> Prepared:
        """Return it on a device; nothing waits for the transfer."""
        if device.type == "cpu":
            return self
        return Prepared(
            self.batch.pin_memory().to(device, non_blocking=True),
            self.genotypes.to(device, non_blocking=True),
        )


class Task(nn.Module):
    """Predict the standardised score of genotypes."""

    def __init__(self, model: nn.Module, loss: Loss, cell: Cell, standard: Standard) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.cell = cell
        self.standard = standard
        self.epoch = 0
        self.timer: PhaseTimer | NoTimer = NoTimer()

    def prepare(self, batch: Batch) -> Prepared:
        """Do the host's work for a batch."""
        if isinstance(self.model, HeteroCell):
            return Prepared(batch, self.model.prepare(self.cell, batch.genotypes))
        return Prepared(batch, batch.genotypes)

    def forward(self, genotypes: Genotypes | Deleted) -> Prediction:
        """Return the prediction with what the loss needs, its score standardised."""
        options = {}
        if isinstance(self.model, Dango):
            options["reconstruct"] = isinstance(self.loss, DangoLoss)
        prediction: Prediction = self.model(self.cell, genotypes, **options)
        return prediction

    def training_step(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """Return the loss, whose sum over ranks is that of the global batch, and its parts."""
        self.timer.switch("forward")
        prediction = self(prepared.genotypes)
        self.timer.switch("loss")
        value = self._loss(prediction, prepared.batch)
        total = value.total
        if not len(prepared.batch) and isinstance(self.model, HeteroCell):
            # A rank without mutants reaches few weights, but the others wait for all gradients.
            total = total + 0 * torch.stack([w.sum() for w in self.model.parameters()]).sum()
        return {"loss": total, **value.parts}

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        """Return AdamW on all weights; see `parameter_groups` for those that are not decayed."""
        return torch.optim.AdamW(
            parameter_groups(self, config.weight_decay),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            fused=True,
        )

    @torch.no_grad()
    def validate(self, loader: Loader) -> Validation:
        """Return the scores of an unshuffled loader's rows on all ranks."""
        modules = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]
        was_training = [module.training for module in modules]
        for module in modules:
            module.eval()
        device = next(self.parameters()).device
        # Each rank fills in its own rows, so that the sum over ranks has all of them.
        predicted = torch.zeros(len(loader.rows) + 1, dtype=torch.float64, device=device)
        place = torch.full((len(loader.screen),), -1, dtype=torch.int64)
        place[torch.from_numpy(np.array(loader.rows))] = torch.arange(len(loader.rows))
        place = place.to(device)
        done = 0
        try:
            for batch in loader:
                n = min(loader.batch_size, loader.samples_per_epoch - done)
                done += n
                if len(batch):
                    prepared = self.prepare(batch).to(device)
                    found = self(prepared.genotypes)
                    score = self.standard.undo(found.score)
                    predicted[place[prepared.batch.rows]] = score.double()
                    predicted[-1] += self._loss(found, prepared.batch).total.double() * n
        finally:
            for module, training in zip(modules, was_training, strict=True):
                module.train(training)
        if world_size() > 1:
            dist.all_reduce(predicted)
        values = predicted.cpu().numpy()
        measured = loader.screen.column("score")[loader.rows].astype(np.float64)
        return Validation(loader.rows, measured, values[:-1], float(values[-1]) / max(1, done))

    def _loss(self, prediction: Prediction, batch: Batch) -> LossValue:
        score = prediction.score
        return self.loss(
            prediction, batch.targets.to(score), batch.weights.to(score), epoch=self.epoch
        )


@dataclass(frozen=True, eq=False)
class Validation:
    """What a model predicts for some rows of a screen, in its unit."""

    rows: npt.NDArray[np.int64]
    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    loss: float

    def metrics(self) -> dict[str, float]:
        """Return the loss, Pearson, Spearman and the mean squared error; NaN if undefined."""
        measured, predicted = torch.tensor(self.measured), torch.tensor(self.predicted)
        constant = len(measured) < 2 or not (measured.std() > 0 and predicted.std() > 0)
        return {
            "loss": self.loss,
            "pearson": math.nan if constant else float(pearson_corrcoef(predicted, measured)),
            "spearman": math.nan if constant else float(spearman_corrcoef(predicted, measured)),
            "mse": float(((measured - predicted) ** 2).mean()) if len(measured) else math.nan,
        }


class Ema:
    """``average <- decay * average + (1 - decay) * weights`` after every step.

    The decay of step ``t`` is at most ``(1 + t) / (10 + t)``, so that the first weights are soon
    forgotten. Unlike `torch.optim.swa_utils.AveragedModel` it does not copy the model's buffers.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(model.named_parameters())
        self.average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = [weight.detach() for weight in self._weights.values()]
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the average while this is open."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        _copy(self.average, self._weights)
        try:
            yield
        finally:
            _copy(own, self._weights)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the average by the names of the weights."""
        return dict(self.average)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Set the average."""
        _copy(state, self.average)


@torch.no_grad()
def _copy(values: dict[str, torch.Tensor], into: dict[str, Any]) -> None:
    for name, tensor in into.items():
        tensor.copy_(values[name])


class Schedule:
    """Sets the learning rate before every optimizer step.

    With ``t`` the steps done, and ``T`` all steps (``cosine``) or those of the current period
    (``warm_restarts``), the rate is ``min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2``. Over
    the first ``warmup_steps`` it is at most ``lr * (t + 1) / warmup_steps``. ``plateau`` multiplies
    the rate after more than ``patience`` validations in a row without a better one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: ScheduleConfig,
        steps_per_epoch: int,
        epochs: int,
    ) -> None:
        self.optimizer, self.config = optimizer, config
        self.steps_per_epoch, self.epochs = steps_per_epoch, epochs
        self.lr: float = optimizer.param_groups[0]["lr"]
        self._plateau: dict[str, Any] = {"factor": 1.0, "best": -math.inf, "waited": 0}
        self.apply(0)

    def apply(self, done: int) -> None:
        """Set the rate of the step after `done` steps."""
        rate = self.rate(done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def rate(self, done: int) -> float:
        """Return the rate of the step after `done` steps."""
        config, least = self.config, self.config.min_lr
        if config.name == "plateau":
            rate: float = max(least, self.lr * self._plateau["factor"])
        else:
            rate = least + (self.lr - least) * self._cosine(done)
        if done < config.warmup_steps:
            rate = min(rate, self.lr * (done + 1) / config.warmup_steps)
        return rate

    def _cosine(self, done: int) -> float:
        if self.config.name == "constant":
            return 1.0
        at, period = done, self.steps_per_epoch * self.epochs
        if self.config.name == "warm_restarts":
            period = self.steps_per_epoch * self.config.period
            while at >= period:
                at -= period
                period *= self.config.period_factor
        return (1 + math.cos(math.pi * min(at / period, 1.0))) / 2

    def validated(self, metric: float) -> None:
        """Take note of a validation; higher is better, and NaN is not."""
        state = self._plateau
        if metric > state["best"]:
            state["best"], state["waited"] = metric, 0
            return
        state["waited"] += 1
        if state["waited"] > self.config.patience:
            state["factor"] *= self.config.factor
            state["waited"] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is not a function of the steps done."""
        return dict(self._plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._plateau = dict(state)
