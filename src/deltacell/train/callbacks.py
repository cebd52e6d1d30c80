"""What hears of a training: metrics loggers and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deltacell.errors import need
from deltacell.profile.record import FIGURES, TENSORBOARD
from deltacell.report.figures import draw_learning, draw_scores
from deltacell.train.config import LoggersConfig

if TYPE_CHECKING:
    from deltacell.train.task import Validation


class Callback:
    """Hears of a training, such as a progress bar; by default it does nothing.

    An epoch is counted from 0 when it begins, after `step` of its batches. A loss is on its device,
    so looking at it may wait. `close` is called however the training ended.
    """

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None: ...
    def step(self, loss: torch.Tensor | None, genotypes: int) -> None: ...
    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None: ...
    def close(self) -> None: ...


class Loggers(Callback):
    """Writes the finite metrics of every epoch with services, such as ``validation/pearson``."""

    def __init__(self, config: LoggersConfig, run: Path) -> None:
        self.services: list[tuple[Callable[..., object], Callable[[], object]]] = []
        by_default = config.tensorboard is None and find_spec("tensorboard") is not None
        if config.tensorboard or by_default:
            from lightning.fabric.loggers.tensorboard import TensorBoardLogger

            board = TensorBoardLogger(run, TENSORBOARD, version="")
            self.services.append((board.log_metrics, partial(board.finalize, "success")))
        if config.wandb:
            import wandb

            mode = "offline" if config.offline else "online"
            about: dict[str, Any] = {"id": run.name, "dir": str(run), "mode": mode}
            made = wandb.init(project=config.project, name=run.name, resume="allow", **about)
            self.services.append((made.log, made.finish))
        if config.mlflow:
            import mlflow

            if config.offline:
                mlflow.set_tracking_uri((run / "mlflow").absolute().as_uri())
            mlflow.set_experiment(config.project)
            mlflow.start_run(run_name=run.name)
            self.services.append((mlflow.log_metrics, mlflow.end_run))

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        values = {
            name.replace("_", "/", 1) if name.startswith(("train_", "validation_")) else name: value
            for name, value in row.items()
            if name not in ("epoch", "step") and math.isfinite(value)
        }
        for write, _ in self.services:
            write(values, step=step)

    def close(self) -> None:
        for _, finish in self.services:
            finish()


def check_loggers(config: LoggersConfig) -> None:
    for name in ("tensorboard", "wandb", "mlflow"):
        if getattr(config, name):
            need(name, f"loggers.{name}=true", name)


def draw_figures(
    run: Path, rows: Sequence[Mapping[str, float]], validation: Validation | None
) -> None:
    folder = run / FIGURES
    folder.mkdir(exist_ok=True)
    draw_learning(rows, folder / "learning.svg")
    if validation is not None:
        file = folder / f"validation-epoch{int(rows[-1]['epoch']):04d}.png"
        draw_scores(validation.measured, validation.predicted, file)
