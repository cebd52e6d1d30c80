"""The training loop: all of its time is in phases, and it can be resumed from any step."""

from __future__ import annotations

from dataclasses import dataclass

from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callbacks, EpochResult
from deltacell.train.checkpoints import score_of
from deltacell.train.communication import StopRequests
from deltacell.train.limits import Limits
from deltacell.train.loaders import Loaders
from deltacell.train.state import Row, TrainingState
from deltacell.train.step import OptimizerStep
from deltacell.train.throughput import Throughput
from deltacell.train.validation import Validator


@dataclass(frozen=True, eq=False)
class Loop:
    """Trains a network in one rank: epochs of optimizer steps, with callbacks around them."""

    state: TrainingState
    loaders: Loaders
    step: OptimizerStep
    validator: Validator
    limits: Limits
    requests: StopRequests
    callbacks: Callbacks
    throughput: Throughput
    timer: PhaseTimer

    def run(self) -> int:
        """Train to the end; return the number of the signal that stopped it, or 0."""
        self.state.task.train()
        self.throughput.start(self.state.position.seconds)
        with self.callbacks.around(self.state):
            signal = 0
            while not (signal or self._is_over()):
                signal = self._run_epoch()
            self._end_row("between")
            return signal

    def _run_epoch(self) -> int:
        """Train to the end of the epoch; return the signal that stopped it, or 0."""
        self._begin_epoch()
        for batches in self.loaders.steps(self.state.position):
            result = self.step(batches)
            self.throughput.add(result.n_genotypes)
            self.callbacks.after_step(self.state, result)
            self.timer.switch("communication")
            request = self.requests.of_any_rank()
            ends = request.signal > 0 or self.limits.spent(self.state.n_batches)
            self.callbacks.after_request(self.state, request, ends=ends)
            self._end_row("train", result.n_computed)
            self.callbacks.after_row()
            if ends:
                return request.signal
        self._end_epoch()
        return 0

    def _is_over(self) -> bool:
        is_spent = self.limits.spent(self.state.n_batches)
        return is_spent or self.limits.finished(self.state.position)

    def _begin_epoch(self) -> None:
        epoch = self.state.position.epoch
        self.state.task.begin_epoch(epoch)
        self.loaders.training.set_epoch(epoch)
        self.callbacks.before_epoch(self.state)
        self.timer.switch("other")
        self.throughput.start_epoch()

    def _end_epoch(self) -> None:
        """Validate if it is due, and go to the next epoch."""
        epoch = self.state.position.epoch
        result = self._result_of_epoch()
        if result.metric is not None:
            self.state.position.note_validation(result.metric, self.step.rate.schedule.patience)
        self.state.finish_epoch(result.row)
        self.callbacks.after_epoch(self.state, result)
        self._end_row("between", epoch=epoch)

    def _result_of_epoch(self) -> EpochResult:
        """Return the losses of the epoch and, if it is due, the metrics of a validation."""
        self.timer.switch("logging")
        position = self.state.position
        row: Row = {
            "epoch": position.epoch + 1,
            "step": position.step,
            "seconds": self.throughput.seconds(),
            "samples_per_s": self.throughput.samples_per_second(),
            "lr": self.state.optimizer.param_groups[0]["lr"],
        }
        for name, mean in self.state.losses.means().items():
            row[f"train_{name}"] = mean
        self.timer.switch("validation")
        validation = self.validator(self.state)
        if validation is None:
            return EpochResult(row)
        metrics = validation.metrics()
        for name, value in metrics.items():
            row[f"validation_{name}"] = value
        return EpochResult(row, validation, score_of(metrics, self.validator.best_by))

    def _end_row(self, kind: str, n_computed: int = 0, epoch: int | None = None) -> None:
        """End a row of the phase timer, which begins the next one."""
        position = self.state.position
        self.timer.switch("other")
        self.timer.end_step(
            position.epoch if epoch is None else epoch,
            position.step,
            n_computed,
            kind=kind,
        )
