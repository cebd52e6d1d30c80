"""What happens around the steps of a training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from deltacell.train.communication import StepRequest
from deltacell.train.state import Row, TrainingState
from deltacell.train.step import StepResult
from deltacell.train.task import Validation


@dataclass(frozen=True)
class EpochResult:
    """What an epoch ended with."""

    row: Row
    validation: Validation | None = None  # None if the epoch had none
    metric: float | None = None  # of the validation, by `trainer.best`; the highest is best


class Callback:
    """Does something around the steps of a loop; by default nothing.

    A callback sees the state of the training and does not change it. It switches the phase timer to
    the phase of what it does.
    """

    def before_training(self, state: TrainingState) -> None:
        """Act before the first step of an attempt."""

    def before_epoch(self, state: TrainingState) -> None:
        """Act before the first step of an epoch, or of what is left of it after a resume."""

    def after_step(self, state: TrainingState, result: StepResult) -> None:
        """Act after every optimizer step, before ranks communicate."""

    def after_request(self, state: TrainingState, request: StepRequest, *, ends: bool) -> None:
        """Act on what all ranks agreed on after a step; `ends` is true after the last one."""

    def after_row(self) -> None:
        """Act between two rows of the phase timer, after the time of a step was recorded."""

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Act after the validation of an epoch."""

    def after_training(self, state: TrainingState) -> None:
        """Act after the last step of an attempt, unless it raised."""

    def close(self) -> None:
        """Act at the end of an attempt, also after an error."""


class Callbacks(Callback):
    """Several callbacks, which are called in their order and closed in the opposite one."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = list(callbacks)

    @contextmanager
    def around(self, state: TrainingState) -> Iterator[None]:
        """Begin an attempt, and close all callbacks at the end, whatever happens."""
        with ExitStack() as stack:
            for callback in self.callbacks:
                stack.callback(callback.close)
            self.before_training(state)
            yield
            self.after_training(state)

    def before_training(self, state: TrainingState) -> None:
        """Call all of them before the first step."""
        for callback in self.callbacks:
            callback.before_training(state)

    def before_epoch(self, state: TrainingState) -> None:
        """Call all of them before an epoch."""
        for callback in self.callbacks:
            callback.before_epoch(state)

    def after_step(self, state: TrainingState, result: StepResult) -> None:
        """Call all of them after a step."""
        for callback in self.callbacks:
            callback.after_step(state, result)

    def after_request(self, state: TrainingState, request: StepRequest, *, ends: bool) -> None:
        """Call all of them with what ranks agreed on."""
        for callback in self.callbacks:
            callback.after_request(state, request, ends=ends)

    def after_row(self) -> None:
        """Call all of them between two rows of the phase timer."""
        for callback in self.callbacks:
            callback.after_row()

    def after_epoch(self, state: TrainingState, result: EpochResult) -> None:
        """Call all of them after an epoch."""
        for callback in self.callbacks:
            callback.after_epoch(state, result)

    def after_training(self, state: TrainingState) -> None:
        """Call all of them after the last step."""
        for callback in self.callbacks:
            callback.after_training(state)
