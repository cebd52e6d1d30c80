"""Checkpoints and metrics of a training."""

from __future__ import annotations

import time
from collections.abc import Mapping

from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callback, EpochResult
from deltacell.train.callbacks.phases import PhaseCallback
from deltacell.train.checkpoints import Checkpoints, validation_metrics
from deltacell.train.communication import StepRequest, StopRequests
from deltacell.train.config import TrainerConfig
from deltacell.train.finite import FiniteGuard
from deltacell.train.run_config import MEANING
from deltacell.train.run_directory import RunDirectory
from deltacell.train.state import TrainingState
from deltacell.train.step import StepResult
from deltacell.train.throughput import Throughput


class CheckpointCallback(Callback):
    """Saves after so many steps or minutes, before the training ends, and after every epoch.

    Ranks other than the first have no `directory`. They take part, because the state has sums over
    all ranks, and write nothing.
    """

    def __init__(
        self,
        config: TrainerConfig,
        directory: RunDirectory | None,
        meaning: dict[str, str],
        *,
        guard: FiniteGuard,
        throughput: Throughput,
        requests: StopRequests,
        phases: PhaseCallback,
        timer: PhaseTimer,
    ) -> None:
        self.config = config
        self.directory = directory
        self.checkpoints: Checkpoints | None = None
        if directory is not None:
            self.checkpoints = directory.checkpoints(config)
        self.meaning = meaning
        self.guard = guard
        self.throughput = throughput
        self.requests = requests
        self.phases = phases
        self.timer = timer
        self._saved = time.monotonic()

    def before_training(self, state: TrainingState) -> None:
        """Begin to count the minutes until the next checkpoint."""
        self._saved = time.monotonic()

    def after_step(self, state: TrainingState, result: StepResult) -> None:
        """Ask all ranks to save if it is time for a checkpoint."""
        minutes = self.config.checkpoint_every_minutes
        if minutes is not None and time.monotonic() - self._saved >= 60 * minutes:
            self.requests.ask_to_save()

    def after_request(self, state: TrainingState, request: StepRequest, *, ends: bool) -> None:
        """Save if a rank asked for it, after so many steps, and before the attempt ends."""
        every = self.config.checkpoint_every_steps
        is_due = request.save or (every is not None and state.position.step % every == 0)
        # The end of an epoch saves anyway, after the validation.
        is_within_epoch = state.position.batch < len(state.loader)
        if ends or (is_due and is_within_epoch):
            self.save(state)

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Write the metrics, and save with those of the validation."""
        self.timer.switch("checkpoint")
        if self.directory is not None:
            self.directory.write_metrics(state.rows)
        self.save(state, validation_metrics(result.row))

    def save(self, state: TrainingState, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state, unless a loss or a weight is not finite; all ranks have to call this."""
        with self.timer.phase("checkpoint"):
            position = state.position
            self.guard.check_losses()
            self.guard.check_weights(position.step)
            position.seconds = self.throughput.seconds()
            content = state.state_dict()
            if self.directory is not None and self.checkpoints is not None:
                content[MEANING] = self.meaning
                self.checkpoints.save(
                    content,
                    step=position.step,
                    epoch=position.epoch,
                    metrics=metrics,
                )
                self.directory.update(**self.checkpoints.reached())
            self.phases.flush()
            self._saved = time.monotonic()
