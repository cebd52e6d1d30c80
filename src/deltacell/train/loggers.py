"""Metrics for those who watch elsewhere: TensorBoard, W&B, MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from deltacell.errors import MissingExtraError
from deltacell.profile.record import TENSORBOARD
from deltacell.train.config import LoggersConfig
from deltacell.train.validate import Validation


class Logger:
    """A callback that passes on the metrics of every epoch, and nothing else of a step."""

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Nothing to tell."""

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Nothing to tell: reading a loss would wait for the device."""

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Pass on what was measured."""
        values = {
            name.replace("_", "/", 1) if name.startswith(("train_", "validation_")) else name: value
            for name, value in row.items()
            if name not in ("epoch", "step") and math.isfinite(value)
        }
        self.write(values, step)

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish."""


class TensorBoard(Logger):
    """Event files in the run.

    Parameters
    ----------
    folder
        Where.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandB(Logger):
    """Weights & Biases; offline, it keeps all in the run.

    Parameters
    ----------
    run
        The run's directory.
    config
        Which project, and whether offline.
    """

    def __init__(self, run: Path, config: LoggersConfig) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=config.project,
            name=run.name,
            dir=str(run),
            mode="offline" if config.offline else "online",
            resume="allow",
            id=run.name,
        )

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


class MLflow(Logger):
    """MLflow; offline, it keeps all in the run.

    Parameters
    ----------
    run
        The run's directory.
    config
        Which experiment, and whether offline.
    """

    def __init__(self, run: Path, config: LoggersConfig) -> None:
        import mlflow

        if config.offline:
            mlflow.set_tracking_uri((run / "mlflow").absolute().as_uri())
        mlflow.set_experiment(config.project)
        mlflow.start_run(run_name=run.name)
        self._mlflow: Any = mlflow

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name."""
        self._mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        """Finish the run there."""
        self._mlflow.end_run()


def check_loggers(config: LoggersConfig) -> None:
    """Raise where a logger that a config asks for is not installed.

    Parameters
    ----------
    config
        Of the run.
    """
    for name, asked in (("wandb", config.wandb), ("mlflow", config.mlflow)):
        # A folder of that name, such as W&B leaves behind, is no package: it has no file.
        if asked and getattr(find_spec(name), "origin", None) is None:
            raise MissingExtraError(f"loggers.{name}=true", name)


def make_loggers(config: LoggersConfig, run: Path) -> list[Logger]:
    """Return the loggers that a config asks for.

    Parameters
    ----------
    config
        Of the run.
    run
        Its directory.
    """
    made: list[Logger] = []
    if config.tensorboard:
        made.append(TensorBoard(run / TENSORBOARD))
    if config.wandb:
        made.append(WandB(run, config))
    if config.mlflow:
        made.append(MLflow(run, config))
    return made
