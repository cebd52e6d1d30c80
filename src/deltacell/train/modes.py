"""Execution modes side by side: what each part of a step costs when it is left out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import DeltacellError
from deltacell.profile.phase_rows import PhaseSummary, read_phases, summarise
from deltacell.profile.record import PHASES
from deltacell.train.config import Mode
from deltacell.words import Progress

ORDER = (Mode.empty, Mode.data, Mode.forward, Mode.step, Mode.train, Mode.fixed)


@dataclass(frozen=True)
class ModeTime:
    """The steady steps of one mode."""

    mode: str
    summary: PhaseSummary


@dataclass(frozen=True)
class Marginal:
    """What a part of a step costs.

    `marginal_ms` is the difference of two modes per step, which is the part's share of a step only
    if nothing overlaps; `exposed_ms` are its phases in the mode ``train``, which do add up.
    """

    part: str
    modes: tuple[str, str]
    marginal_ms: float
    exposed_ms: float


_PARTS = (
    ("data, preparation, transfer", "data", "", ("data_wait", "preparation", "transfer")),
    ("forward and loss", "forward", "data", ("forward", "loss")),
    ("backward and communication", "step", "forward", ("backward", "communication")),
    ("optimizer", "train", "step", ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str], steps: int = 30, progress: Progress | None = None
) -> list[ModeTime]:
    """Run every mode of a config for some batches, each in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for i, mode in enumerate(ORDER):
            if progress is not None:
                progress(f"mode {mode.value}", i, len(ORDER))
            path = Path(folder) / mode.value
            words = [
                *overrides,
                f"mode={mode.value}",
                f"mode_steps={steps}",
                f"directory='{path}'",
                "trainer.progress=false",
                "profiler.trace=false",
                "loggers.tensorboard=false",
            ]
            command = [sys.executable, "-m", "deltacell", "train", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error = (done.stderr or done.stdout).strip().removeprefix("error: ")
                raise DeltacellError(f"the mode '{mode.value}' failed: {error}")
            found.append(ModeTime(mode.value, summarise(read_phases(path / PHASES))))
    return found


def marginals(times: Sequence[ModeTime]) -> list[Marginal]:
    """Return the differences between modes, beside the phases of the whole step."""
    by = {time.mode: time.summary for time in times}
    return [
        Marginal(
            part,
            (more, less),
            by[more].ms_per_step - (by[less].ms_per_step if less else 0.0),
            sum(by["train"].of(phase).ms_per_step for phase in phases),
        )
        for part, more, less, phases in _PARTS
    ]
