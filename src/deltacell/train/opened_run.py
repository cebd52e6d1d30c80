"""Opening a run: a new directory, or one that is resumed, with its lock, record and data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from deltacell.base.errors import StoreError
from deltacell.profile.fit_phases import FitTimer
from deltacell.profile.record import CHECKPOINTS, RUN_FILE, SPLIT, RunRecord, Status, read_run
from deltacell.profile.refitted import Refitted
from deltacell.screen import Split
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.train.places import changes
from deltacell.train.run_config import resumed_config
from deltacell.train.run_directory import RunDirectory, create_run, new_path, opened, run_exists

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run that begins or is resumed, in one rank."""

    path: Path
    config: Config
    data: TrainingData
    before: RunRecord | None  # the record of a run that is resumed
    directory: RunDirectory | None  # of a run that is resumed, in the first rank
    is_first: bool
    world_size: int
    _stack: ExitStack

    def checkpoints(self) -> Checkpoints:
        """Return the checkpoints of the run, which only the first rank changes."""
        if self.directory is not None:
            return self.directory.checkpoints(self.config.trainer)
        return Checkpoints(self.path / CHECKPOINTS, self.config.trainer.keep)

    def begin(
        self,
        command: Sequence[str],
        refitted: Refitted | None = None,
    ) -> RunDirectory | None:
        """Return the run directory in the first rank, and make it if the run is new."""
        if not self.is_first or self.directory is not None:
            return self.directory
        create_run(
            self.path,
            self.config,
            command,
            world_size=self.world_size,
            split=self.data.split,
            refitted=refitted,
        )
        return self._stack.enter_context(opened(self.path, running=True))


@contextmanager
def opened_run(
    config: Config,
    resume: Path | None,
    data: TrainingData | None,
    *,
    fabric: Fabric | None = None,
    timer: FitTimer | None = None,
) -> Iterator[OpenedRun]:
    """Open the run of a config, or the one to resume, until the end of the block.

    A new run gets its directory in `OpenedRun.begin`, so that mistakes which are found before leave
    none. Without a `fabric`, this process is the only one. A `timer` counts the time to load data
    that are not given.
    """
    is_first = fabric is None or fabric.is_global_zero
    path = new_path(config) if resume is None else resume
    resumes = resume is not None or (is_first and _is_rerun(path, config))
    path = _of_first_rank(fabric, path)
    resumes = _of_first_rank(fabric, resumes)
    with ExitStack() as stack:
        directory = stack.enter_context(opened(path)) if is_first and resumes else None
        before = _of_first_rank(fabric, None if directory is None else directory.record)
        if data is None:
            with nullcontext() if timer is None else timer.phase("reading"):
                data = load_data(config, path / SPLIT if resumes else None)
        elif resumes and Split.load(path / SPLIT, data.screen).checksum != data.split.checksum:
            what = "the run was started with another split"
            raise StoreError(what, code="other-split", where=path)
        if is_first and not resumes:
            for sentence in data.warnings:
                warnings.warn(sentence, stacklevel=4)
        world_size = 1 if fabric is None else fabric.world_size
        yield OpenedRun(path, config, data, before, directory, is_first, world_size, stack)


def _is_rerun(path: Path, config: Config) -> bool:
    """Return whether a command that was stopped is run again, which resumes its run."""
    if not (path / RUN_FILE).is_file():
        return False
    changed = changes(resumed_config(path), config)
    if changed or read_run(path).status is Status.finished:
        raise run_exists(path, changed)
    return True


def _of_first_rank(fabric: Fabric | None, value: Value) -> Value:
    """Return the value of the first rank."""
    if fabric is None:
        return value
    first: Value = fabric.broadcast(value)
    return first
