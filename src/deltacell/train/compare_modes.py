"""A comparison of all modes of a config, which shows what each part of a step costs.

`deltacell.train.mode` says what each mode executes.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltacell.base.errors import DeltacellError, InputError
from deltacell.base.files import temporary_name
from deltacell.base.text import Progress
from deltacell.profile.phase_rows import PhaseSummary
from deltacell.train.comparing.estimate import ArmTime, estimate
from deltacell.train.comparing.trials import TrialError, TrialRow, run_trial

ORDER = ("empty", "data", "forward", "step", "train", "fixed")
_SET_HERE = ("mode", "mode_steps", "directory")


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


@dataclass(frozen=True, eq=False)
class ModeTrials:
    """The trials of a mode, which took turns with those of the others."""

    trials: Sequence[PhaseSummary]

    @property
    def typical(self) -> PhaseSummary:
        """The trial in the middle by its time per step."""
        by_time = sorted(self.trials, key=lambda trial: trial.ms_per_step)
        return by_time[(len(by_time) - 1) // 2]

    @property
    def step(self) -> ArmTime:
        """The seconds of a step, with its noise."""
        rows = []
        for turn, trial in enumerate(self.trials):
            seconds = tuple(trial.steady["wall_s"].to_list())
            rows.append(TrialRow("", turn, trial.run_s, seconds, trial.samples / len(seconds)))
        result = estimate(rows, per_sample=False)
        assert result is not None
        return result


def run_modes(
    overrides: Sequence[str],
    steps: int = 30,
    progress: Progress = lambda what, done, total: None,
    *,
    repeats: int = 1,
) -> dict[str, ModeTrials]:
    """Run every execution mode of a config for some batches, in turns, each in a new process."""
    for word in overrides:
        key = word.lstrip("+").partition("=")[0]
        if key in _SET_HERE:
            what = f"'{word}' is set by this command, which runs every mode"
            fix = f"Leave it out, or run one mode alone: deltacell train ... {word}."
            raise InputError(what, code="set-by-modes", key=key, fix=fix)
    trials: dict[str, list[PhaseSummary]] = {mode: [] for mode in ORDER}
    with _temporary_folder() as folder:
        for turn in range(repeats):
            for number, mode in enumerate(ORDER):
                progress(f"mode {mode}", turn * len(ORDER) + number, repeats * len(ORDER))
                try:
                    trials[mode].append(run_trial(overrides, mode, steps, folder / mode))
                except TrialError as error:
                    raise DeltacellError(f"the mode '{mode}' failed: {error}") from None
    return {mode: ModeTrials(of_mode) for mode, of_mode in trials.items()}


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a new folder and remove it afterwards; that of a killed process is removed here."""
    folder = temporary_name(Path(tempfile.gettempdir(), "deltacell-modes"))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def marginals(by_mode: Mapping[str, ModeTrials]) -> list[dict[str, Any]]:
    """Return the cost of each part of a step.

    ``marginal_ms`` is the difference between two modes, which adds up only if nothing overlaps, and
    ``noise_ms`` is half of its interval: a part that costs less may even seem to save time.
    ``exposed_ms`` is the sum of its phases in the mode ``train``.
    """
    rows = []
    for part in _PARTS:
        marginal = by_mode[part.with_it].typical.ms_per_step
        noise = by_mode[part.with_it].step.noise
        if part.without_it is not None:
            marginal -= by_mode[part.without_it].typical.ms_per_step
            noise = math.hypot(noise, by_mode[part.without_it].step.noise)
        exposed = sum(by_mode["train"].typical.of(phase).ms_per_step for phase in part.phases)
        rows.append(
            {
                "part": part.name,
                "modes": (part.with_it, part.without_it or ""),
                "marginal_ms": marginal,
                "noise_ms": 1e3 * noise,
                "exposed_ms": exposed,
            },
        )
    return rows
