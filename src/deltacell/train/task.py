"""The task: a model, its loss and the scale of its targets, as a Lightning module."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.models import Dango, DangoLoss, HeteroCell, Loss, LossValue, Prediction
from deltacell.models.base import parameter_groups
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.propagate import Deleted
from deltacell.screen import Batch, Genotypes
from deltacell.train.config import OptimizerConfig
from deltacell.train.standard import Standard


class Prepared:
    """A batch with the host's work for the model done.

    Not a dataclass, because Fabric would take those apart on their way into the model.

    Parameters
    ----------
    batch
        As the loader hands it out.
    genotypes
        What the model is called with.
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


class Task(lightning.LightningModule):
    """Predict the standardised score of genotypes.

    Parameters
    ----------
    model
        `Dango` or `HeteroCell`.
    loss
        Of standardised scores.
    cell
        The wild type.
    standard
        The scale of the targets.
    optimizer
        Of AdamW.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        cell: Cell,
        standard: Standard,
        optimizer: OptimizerConfig,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.cell = cell
        self.standard = standard
        self.optimizer = optimizer
        self.epoch = 0
        self.timer: PhaseTimer | NoTimer = NoTimer()

    def prepare(self, batch: Batch) -> Prepared:
        """Do the host's work for a batch.

        Parameters
        ----------
        batch
            As the loader hands it out.
        """
        if isinstance(self.model, HeteroCell):
            return Prepared(batch, self.model.prepare(self.cell, batch.genotypes))
        return Prepared(batch, batch.genotypes)

    def forward(self, genotypes: Genotypes | Deleted) -> Prediction:
        """Return the prediction, its score on the common scale, with what the loss needs."""
        options = {}
        if isinstance(self.model, Dango):
            options["reconstruct"] = isinstance(self.loss, DangoLoss)
        prediction: Prediction = self.model(self.cell, genotypes, **options)
        return prediction

    def training_step(self, prepared: Prepared, _: int = 0) -> dict[str, torch.Tensor]:
        """Return the loss, whose sum over ranks is that of the global batch, and its parts."""
        self.timer.switch("forward")
        prediction = self(prepared.genotypes)
        self.timer.switch("loss")
        value = self._loss(prediction, prepared.batch)
        total = value.total
        if not len(prepared.batch) and isinstance(self.model, HeteroCell):
            # A rank without mutants reaches few weights, and the others wait for all gradients.
            total = total + 0 * torch.stack([w.sum() for w in self.model.parameters()]).sum()
        return {"loss": total, **value.parts}

    def validation_step(self, prepared: Prepared, _: int = 0) -> dict[str, torch.Tensor]:
        """Return the scores in the unit of the screen, and the loss."""
        prediction = self(prepared.genotypes)
        value = self._loss(prediction, prepared.batch)
        return {"score": self.standard.undo(prediction.score), "loss": value.total}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW on all weights; see `parameter_groups` for those that are not decayed."""
        config = self.optimizer
        return torch.optim.AdamW(
            parameter_groups(self, config.weight_decay),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            fused=True,
        )

    def _loss(self, prediction: Prediction, batch: Batch) -> LossValue:
        score = prediction.score
        return self.loss(
            prediction, batch.targets.to(score), batch.weights.to(score), epoch=self.epoch
        )

    def extra(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the weights to make predictions of them."""
        return {"mean": self.standard.mean, "std": self.standard.std}
