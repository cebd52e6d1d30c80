"""The phases and components of a training on disk."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from deltacell.base.errors import DeltacellError
from deltacell.profile.components import ComponentTimer
from deltacell.profile.phases import PhaseTimer
from deltacell.train.callbacks.base import Callback
from deltacell.train.run_directory import RunDirectory
from deltacell.train.state import TrainingState


class PhaseCallback(Callback):
    """Writes the rows of the timers of phases and of components of one rank."""

    def __init__(
        self,
        timer: PhaseTimer,
        components: ComponentTimer,
        folder: Path,
        directory: RunDirectory | None,
        *,
        rank: int,
        attempt: int,
    ) -> None:
        self.timer = timer
        self.components = components
        self.folder = folder
        self.directory = directory
        self.rank = rank
        self.attempt = attempt

    def flush(self) -> None:
        """Write the rows since the last call, if this process still owns the run."""
        if self.directory is not None:
            self.directory.lock.check()
        self.timer.flush(self.folder, self.rank, self.attempt)
        self.components.flush(self.folder, self.rank, self.attempt)

    def after_training(self, state: TrainingState) -> None:
        """Write the last rows."""
        self.flush()

    def close(self) -> None:
        """Write what is left after an error."""
        # An error of the training must not be hidden by one of the disk.
        with suppress(DeltacellError):
            self.flush()
