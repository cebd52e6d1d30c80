"""A comparison of all modes of a config, which shows what each part of a step costs.

`deltacell.train.mode` says what each mode executes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltacell.base.errors import DeltacellError
from deltacell.base.text import Progress, hydra_text
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import PHASES

ORDER = ("empty", "data", "forward", "step", "train", "fixed")
_QUIET = ("trainer.progress=false", "profiler.trace=false", "loggers.tensorboard=false")


@dataclass(frozen=True)
class _StepPart:
    """A part of a step, which one mode executes and another one leaves out."""

    name: str
    with_it: str
    without_it: str | None  # None: the part is all that the mode executes
    phases: tuple[str, ...]


_PARTS = (
    _StepPart(
        "data, preparation, transfer", "data", None, ("data_wait", "preparation", "transfer")
    ),
    _StepPart("forward and loss", "forward", "data", ("forward", "loss")),
    _StepPart("backward and communication", "step", "forward", ("backward", "communication")),
    _StepPart("optimizer", "train", "step", ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str],
    steps: int = 30,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, PhaseSummary]:
    """Run every execution mode of a config for some batches, each in a new process."""
    phases_of_mode = {}
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for number, mode in enumerate(ORDER):
            progress(f"mode {mode}", number, len(ORDER))
            path = Path(folder) / mode
            settings = (f"mode={mode}", f"mode_steps={steps}", f"directory={hydra_text(path)}")
            words = ("train", *overrides, *settings, *_QUIET)
            command = [sys.executable, "-m", "deltacell", *words]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                error = (process.stderr or process.stdout).strip().removeprefix("error: ")
                raise DeltacellError(f"the mode '{mode}' failed: {error}")
            phases_of_mode[mode] = PhaseSummary(read_phases(path / PHASES))
    return phases_of_mode


def marginals(by_mode: Mapping[str, PhaseSummary]) -> list[dict[str, Any]]:
    """Return the cost of each part of a step.

    ``marginal_ms`` is the difference between two modes, which adds up only if nothing overlaps;
    ``exposed_ms`` is the sum of its phases in the mode ``train``.
    """
    rows = []
    for part in _PARTS:
        marginal = by_mode[part.with_it].ms_per_step
        if part.without_it is not None:
            marginal -= by_mode[part.without_it].ms_per_step
        exposed = sum(by_mode["train"].of(phase).ms_per_step for phase in part.phases)
        modes = (part.with_it, part.without_it or "")
        rows.append(
            {"part": part.name, "modes": modes, "marginal_ms": marginal, "exposed_ms": exposed},
        )
    return rows
