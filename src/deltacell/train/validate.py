"""Scores of the validation part, and how good they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

from deltacell.screen import Loader
from deltacell.train.communication import world_size

if TYPE_CHECKING:
    # The task is a Lightning module, which a fitted predictor does without.
    from deltacell.train.task import Task


@dataclass(frozen=True, eq=False)
class Validation:
    """What the model says of some rows, in the unit of the screen.

    Parameters
    ----------
    rows
        Of the screen, [n].
    measured, predicted
        [n].
    loss
        The mean over them.
    """

    rows: npt.NDArray[np.int64]
    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    loss: float

    def metrics(self) -> dict[str, float]:
        """Return Pearson, Spearman and the mean squared error; NaN where there is none."""
        measured, predicted = torch.tensor(self.measured), torch.tensor(self.predicted)
        constant = len(measured) < 2 or not (measured.std() > 0 and predicted.std() > 0)
        nan = float("nan")
        return {
            "loss": self.loss,
            "pearson": nan if constant else float(pearson_corrcoef(predicted, measured)),
            "spearman": nan if constant else float(spearman_corrcoef(predicted, measured)),
            "mse": float(((measured - predicted) ** 2).mean()) if len(measured) else nan,
        }


@torch.no_grad()
def validate(
    task: Task, loader: Loader, progress: Callable[[int, int], None] | None = None
) -> Validation:
    """Return the scores of a loader's rows on all ranks; one collective at the end.

    Parameters
    ----------
    task
        With its weights.
    loader
        Without shuffling, of this rank.
    progress
        Called with the batches done and all of them.
    """
    modules = [m for m in (task.model, task.loss) if isinstance(m, torch.nn.Module)]
    was_training = [module.training for module in modules]
    for module in modules:
        module.eval()
    device = task.device
    # Each rank fills in its own rows; the sum over ranks is then all of them.
    predicted = torch.zeros(len(loader.rows) + 1, dtype=torch.float64, device=device)
    place = torch.full((len(loader.screen),), -1, dtype=torch.int64)
    place[torch.from_numpy(np.array(loader.rows))] = torch.arange(len(loader.rows))
    place = place.to(device)
    done = 0
    try:
        for i, batch in enumerate(loader):
            n = min(loader.batch_size, loader.samples_per_epoch - done)
            done += n
            if len(batch):
                prepared = task.prepare(batch).to(device)
                found = task.validation_step(prepared)
                predicted[place[prepared.batch.rows]] = found["score"].double()
                predicted[-1] += found["loss"].double() * n
            if progress is not None:
                progress(i + 1, len(loader))
    finally:
        for module, training in zip(modules, was_training, strict=True):
            module.train(training)
    if world_size() > 1:
        dist.all_reduce(predicted)
    values = predicted.cpu().numpy()
    measured = loader.screen.column("score")[loader.rows].astype(np.float64)
    return Validation(loader.rows, measured, values[:-1], float(values[-1]) / max(1, done))
