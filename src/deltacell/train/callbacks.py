"""What hears of a training: metrics loggers and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deltacell.errors import MissingExtraError
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import FIGURES, TENSORBOARD
from deltacell.report.figures import draw_learning, draw_scores
from deltacell.train.config import LoggersConfig
from deltacell.train.run_directory import MetricsFile

if TYPE_CHECKING:
    from deltacell.train.task import Validation


class Callback(Protocol):
    """Hears of a training, such as a progress bar; by default it does nothing."""

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Hear that an epoch, counted from 0, begins or continues after `step` batches."""
        return

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Hear of a global batch; the loss is on its device, so looking at it may wait."""
        return

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Hear of the metrics of an epoch after `step` optimizer steps."""
        return

    def close(self) -> None:
        """Hear that the training is over, for whatever reason."""
        return


class Logger(Callback):
    """Passes on the metrics of every epoch."""

    def __init__(
        self, write: Callable[[dict[str, float], int], object], close: Callable[[], object]
    ) -> None:
        self._write, self._close = write, close

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Write the finite numbers, such as ``validation/pearson``."""
        values = {
            name.replace("_", "/", 1) if name.startswith(("train_", "validation_")) else name: value
            for name, value in row.items()
            if name not in ("epoch", "step") and math.isfinite(value)
        }
        self._write(values, step)

    def close(self) -> None:
        """Finish."""
        self._close()


def check_loggers(config: LoggersConfig) -> None:
    """Raise if a logger is not installed."""
    for name, asked in (("wandb", config.wandb), ("mlflow", config.mlflow)):
        # A folder of that name, such as W&B leaves behind, is not a package: it has no file.
        if asked and getattr(find_spec(name), "origin", None) is None:
            raise MissingExtraError(f"loggers.{name}=true", name)


def make_loggers(config: LoggersConfig, run: Path) -> list[Logger]:
    """Return the loggers of a run directory."""
    made = []
    if config.tensorboard:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(run / TENSORBOARD))

        def write(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        made.append(Logger(write, writer.close))
    if config.wandb:
        import wandb

        one: Any = wandb.init(
            project=config.project,
            name=run.name,
            dir=str(run),
            mode="offline" if config.offline else "online",
            resume="allow",
            id=run.name,
        )
        made.append(Logger(lambda values, step: one.log(values, step=step), one.finish))
    if config.mlflow:
        import mlflow

        if config.offline:
            mlflow.set_tracking_uri((run / "mlflow").absolute().as_uri())
        mlflow.set_experiment(config.project)
        mlflow.start_run(run_name=run.name)
        made.append(
            Logger(lambda values, step: mlflow.log_metrics(values, step=step), mlflow.end_run)
        )
    return made


class Figures(Callback):
    """Draws the learning curve and the validation's scores every few epochs.

    Drawing counts as the phase of checkpoints, not as logging.
    """

    def __init__(
        self, run: Path, metrics: MetricsFile, every: int, timer: PhaseTimer | NoTimer
    ) -> None:
        self.folder, self.metrics, self.every, self.timer = run / FIGURES, metrics, every, timer

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Draw, if it is time to."""
        epoch = int(row["epoch"])
        if not self.every or epoch % self.every:
            return
        with self.timer.phase("checkpoint"):
            self.folder.mkdir(exist_ok=True)
            draw_learning(self.metrics.rows, self.folder / "learning.svg")
            if validation is not None:
                file = self.folder / f"validation-epoch{epoch:04d}.png"
                draw_scores(validation.measured, validation.predicted, file)
