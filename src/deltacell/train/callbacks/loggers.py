"""The config and the metrics of every epoch in TensorBoard, W&B and MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from torch import nn

from deltacell.base.errors import need
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.record import TENSORBOARD
from deltacell.train.callbacks.base import Callback, EpochResult
from deltacell.train.config import Config, LoggersConfig
from deltacell.train.places import flat_values
from deltacell.train.state import TrainingState

PARTS = ("train_", "validation_")
# What MLflow accepts of a parameter and of a call.
_MLFLOW_CHARACTERS = 250
_MLFLOW_AT_ONCE = 50


class Service(Protocol):
    """A service that keeps the config of a run, and metrics by step."""

    def describe(self, values: Mapping[str, object]) -> None:
        """Keep the config, by key, and the numbers of parameters."""

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Keep the metrics of a step."""

    def finish(self) -> None:
        """Send what is left, and end."""


class LoggerCallback(Callback):
    """Logs the finite metrics of every epoch, such as ``validation/pearson``."""

    def __init__(self, config: Config, run: Path, timer: PhaseTimer) -> None:
        self.config = config
        self.services = build_services(config.loggers, run)
        self.timer = timer

    def before_training(self, state: TrainingState) -> None:
        """Write the config and the numbers of parameters to all services."""
        values = {**flat_values(self.config), **parameter_counts(state.task.model)}
        for service in self.services:
            service.describe(values)

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Write the metrics of the epoch to all services."""
        self.timer.switch("logging")
        metrics = logged_metrics(result.row)
        for service in self.services:
            service.write(metrics, state.position.step)

    def close(self) -> None:
        """End all services."""
        for service in self.services:
            service.finish()


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters of a model, and of each of its direct parts."""
    counts = {"parameters": _count(model)}
    for name, part in model.named_children():
        counts[f"parameters.{name}"] = _count(part)
    return counts


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def logged_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics of an epoch; ``train_loss`` becomes ``train/loss``."""
    metrics = {}
    for name, value in row.items():
        if name in ("epoch", "step") or not math.isfinite(value):
            continue
        metrics[name.replace("_", "/", 1) if name.startswith(PARTS) else name] = value
    return metrics


def check_services(config: LoggersConfig) -> None:
    """Raise for a service whose package is not installed."""
    wanted = {
        "tensorboard": config.tensorboard,
        "wandb": config.wandb,
        "mlflow": config.mlflow,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            need(name, f"loggers.{name}=true", name)


def build_services(config: LoggersConfig, run: Path) -> list[Service]:
    """Return the services of a config; TensorBoard is one by default, if it is installed."""
    services: list[Service] = []
    has_tensorboard = config.tensorboard is None and find_spec("tensorboard") is not None
    if config.tensorboard or has_tensorboard:
        services.append(_TensorBoard(run))
    if config.wandb:
        services.append(_Wandb(config, run))
    if config.mlflow:
        services.append(_MLflow(config, run))
    return services


class _TensorBoard:
    def __init__(self, run: Path) -> None:
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        self._logger = TensorBoardLogger(run, TENSORBOARD, version="")

    def describe(self, values: Mapping[str, object]) -> None:
        """Keep the config as a table of text."""
        rows = [f"| {key} | {value} |" for key, value in values.items()]
        table = "\n".join(["| key | value |", "| --- | --- |", *rows])
        self._logger.experiment.add_text("config", table)

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Keep the metrics of a step."""
        self._logger.log_metrics(metrics, step=step)

    def finish(self) -> None:
        """Send what is left, and end."""
        self._logger.finalize("success")


class _Wandb:
    def __init__(self, config: LoggersConfig, run: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=config.project,
            name=run.name,
            id=run.name,
            dir=str(run),
            mode="offline" if config.offline else "online",
            resume="allow",
        )

    def describe(self, values: Mapping[str, object]) -> None:
        """Keep the config of the run."""
        # A resumed run may have more epochs than before.
        self._run.config.update(dict(values), allow_val_change=True)

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Keep the metrics of a step."""
        self._run.log(metrics, step=step)

    def finish(self) -> None:
        """Send what is left, and end."""
        self._run.finish()


class _MLflow:
    def __init__(self, config: LoggersConfig, run: Path) -> None:
        import mlflow

        self._mlflow = mlflow
        if config.offline:
            mlflow.set_tracking_uri((run / "mlflow").absolute().as_uri())
        mlflow.set_experiment(config.project)
        mlflow.start_run(run_name=run.name)

    def describe(self, values: Mapping[str, object]) -> None:
        """Keep the config as parameters of the run."""
        texts = [(key, str(value)[:_MLFLOW_CHARACTERS]) for key, value in values.items()]
        for begin in range(0, len(texts), _MLFLOW_AT_ONCE):
            self._mlflow.log_params(dict(texts[begin : begin + _MLFLOW_AT_ONCE]))

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Keep the metrics of a step."""
        self._mlflow.log_metrics(metrics, step=step)

    def finish(self) -> None:
        """Send what is left, and end."""
        self._mlflow.end_run()
