"""Profilers of the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.profile.capture import Profiler
from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callback
from deltacell.train.state import TrainingState


class CaptureCallback(Callback):
    """Advances profilers between two rows of the phase timer.

    So a step of a capture begins with a row, and contains its phases.
    """

    def __init__(self, profilers: Sequence[Profiler], timer: PhaseTimer) -> None:
        self.profilers = list(profilers)
        self.timer = timer

    @property
    def notices(self) -> tuple[str, ...]:
        """What the profilers could not record."""
        notices: list[str] = []
        for profiler in self.profilers:
            notices += profiler.notices
        return tuple(notices)

    def before_training(self, state: TrainingState) -> None:
        """Start the profilers with the number of the next step."""
        for profiler in self.profilers:
            profiler.start(state.position.step)

    def after_row(self) -> None:
        """Advance the profilers by a step."""
        self.timer.switch("logging")
        for profiler in self.profilers:
            profiler.step()

    def close(self) -> None:
        """Stop the profilers, which write what they recorded."""
        for profiler in self.profilers:
            profiler.stop()
