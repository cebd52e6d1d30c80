"""The state of a training: everything that the next step depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from deltacell.screen import Loader
from deltacell.train.ema import AveragedWeights
from deltacell.train.epoch_losses import EpochLosses
from deltacell.train.position import Position
from deltacell.train.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Row = dict[str, float]
"""The metrics of an epoch: a row of ``metrics.csv``."""


@dataclass
class TrainingState:
    """The weights, the optimizer, the place in the data and the metrics until now."""

    fabric: Fabric
    task: Task
    optimizer: torch.optim.Optimizer
    average: AveragedWeights | None
    loader: Loader  # of the training part
    position: Position = field(default_factory=Position)
    rows: list[Row] = field(default_factory=list)
    losses: EpochLosses = field(default_factory=EpochLosses)  # of the current epoch
    n_batches: int = 0  # that this attempt has computed; not saved

    def finish_epoch(self, row: Row) -> None:
        """Keep the metrics of an epoch, and go to the beginning of the next one."""
        self.rows.append(row)
        self.position.epoch += 1
        self.position.batch = 0
        self.losses.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint; all ranks have to call this.

        Three keys differ from the attributes, as saved runs have them: ``ema`` is `average`,
        ``meter`` is `losses`, the sums of the epoch that the checkpoint interrupts, and ``loss`` is
        the state of the loss function. `deltacell.train.checkpoints` lists what else a run needs.
        """
        loss = self.task.loss
        device = self.fabric.device
        return {
            "position": asdict(self.position),
            "rows": [dict(row) for row in self.rows],
            "model": dict(self.task.model.state_dict()),
            "loss": dict(loss.state_dict()) if isinstance(loss, nn.Module) else None,
            "optimizer": self.optimizer.state_dict(),
            "ema": None if self.average is None else dict(self.average.weights),
            "loader": self.loader.state_dict(),
            "meter": self.losses.state_dict(),
            "random": torch.get_rng_state(),
            "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "standard": asdict(self.task.standard),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint as if the training had never stopped."""
        device = self.fabric.device
        self.position = Position(**state["position"])
        self.rows = [dict(row) for row in state["rows"]]
        self.task.model.load_state_dict(state["model"])
        if isinstance(self.task.loss, nn.Module):
            self.task.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load(state["ema"])
        self.loader.load_state_dict(state["loader"])
        is_first = self.fabric.is_global_zero
        self.losses.load_state_dict(state["meter"], device, is_first=is_first)
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state["random_device"], device)
