"""One trial: a few steps of a config in a mode, in a process of its own.

`deltacell modes` and `deltacell compare` both run their trainings with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deltacell.base.errors import DeltacellError
from deltacell.base.text import hydra_text
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import PHASES
from deltacell.train.config import Config
from deltacell.train.places import flat_values

# What a trial leaves out, because it does not belong to the steps.
QUIET = (
    *("trainer.progress=false", "trainer.figures_every=0", "profiler.phases=true"),
    *("profiler.trace=false", "profiler.kind=null", "loggers.tensorboard=false"),
    *("loggers.wandb=false", "loggers.mlflow=false"),
)
# Keys that name a group and are chosen as such, and those that every trial sets itself.
_GROUPS = ("model.name", "loss.name")
_OF_TRIAL = ("directory", "mode", "mode_steps")


class TrialError(DeltacellError):
    """A trial that failed."""


def words_of(config: Config) -> list[str]:
    """Return overrides that compose a config, in whichever directory they are used."""
    words = [f"model={config.model.name}", f"loss={config.loss.name}"]
    for key, value in flat_values(config).items():
        if key not in (*_GROUPS, *_OF_TRIAL):
            words.append(f"{key}={hydra_text(value)}")
    return words


def run_trial(words: Sequence[str], mode: str, steps: int, path: Path) -> PhaseSummary:
    """Train for some steps in a new process, into a directory that is removed afterwards."""
    own = (f"mode={mode}", f"mode_steps={steps}", f"directory={hydra_text(path)}")
    command = [sys.executable, "-m", "deltacell", "train", *words, *own, *QUIET]
    shutil.rmtree(path, ignore_errors=True)  # of a comparison that was killed
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            error = (process.stderr or process.stdout).strip().removeprefix("error: ")
            raise TrialError(error)
        return PhaseSummary(read_phases(path / PHASES))
    finally:
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class TrialRow:
    """What a finished trial measured; ``step_s`` is empty if it failed."""

    arm: str
    turn: int
    seconds: float  # of the whole process
    step_s: tuple[float, ...] = ()  # seconds of each steady step
    samples: float = 0.0  # of a steady step, over all ranks
    phases: Mapping[str, float] | None = None  # seconds of a steady step
    error: str | None = None

    @property
    def per_sample(self) -> Iterator[float]:
        """The seconds per sample of each steady step."""
        return (seconds / self.samples for seconds in self.step_s)


class AnyArm(Protocol):
    """What a trial runs."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Config: ...

    @property
    def mode(self) -> str: ...


class TrialRunner(Protocol):
    """Runs one trial of an arm; an error that the trial raised is part of the row."""

    def __call__(self, arm: AnyArm, turn: int, steps: int) -> TrialRow: ...


@dataclass(frozen=True)
class ProcessRunner:
    """Runs trials in processes of their own, with their run directories in a folder."""

    folder: Path

    def __call__(self, arm: AnyArm, turn: int, steps: int) -> TrialRow:
        """Return what a trial measured."""
        began = time.monotonic()
        words = words_of(arm.config)
        try:
            summary = run_trial(words, arm.mode, steps, self.folder / "trial")
        except TrialError as error:
            return TrialRow(arm.name, turn, time.monotonic() - began, error=str(error))
        return TrialRow(
            arm.name,
            turn,
            time.monotonic() - began,
            step_s=tuple(summary.steady["wall_s"].to_list()),
            samples=summary.samples / max(1, summary.steps),
            phases={phase.phase: phase.seconds / max(1, summary.steps) for phase in summary.phases},
        )
