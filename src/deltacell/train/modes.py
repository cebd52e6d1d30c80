"""Execution modes side by side: what each part of a step costs when it is left out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import DeltacellError
from deltacell.profile.phase_rows import PhaseSummary, read_phases, summarise
from deltacell.profile.record import PHASES
from deltacell.train.config import Mode

ORDER = (Mode.empty, Mode.data, Mode.forward, Mode.step, Mode.train, Mode.fixed)


@dataclass(frozen=True)
class ModeTime:
    """One mode.

    Parameters
    ----------
    mode
        Its name.
    summary
        Of its steady steps.
    """

    mode: str
    summary: PhaseSummary


@dataclass(frozen=True)
class Marginal:
    """What a part of a step costs.

    Parameters
    ----------
    part
        In words.
    modes
        The two modes whose difference it is.
    marginal_ms
        The difference of their times a step. It is the part's share of a step only where nothing
        overlaps.
    exposed_ms
        The phases of that part in the mode ``train``, which do add up.
    """

    part: str
    modes: tuple[str, str]
    marginal_ms: float
    exposed_ms: float


_PARTS = (
    ("data, preparation, transfer", Mode.data, None, ("data_wait", "preparation", "transfer")),
    ("forward and loss", Mode.forward, Mode.data, ("forward", "loss")),
    ("backward and communication", Mode.step, Mode.forward, ("backward", "communication")),
    ("optimizer", Mode.train, Mode.step, ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str],
    steps: int = 30,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[ModeTime]:
    """Run every mode for some steps, each in a process of its own.

    Parameters
    ----------
    overrides
        The config, as `deltacell train` takes it.
    steps
        Batches of each.
    progress
        Called with the mode, how many are done, and how many there are.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for i, mode in enumerate(ORDER):
            if progress is not None:
                progress(f"mode {mode.value}", i, len(ORDER))
            found.append(_run_mode(overrides, mode, steps, Path(folder) / mode.value))
    return found


def marginals(times: Sequence[ModeTime]) -> list[Marginal]:
    """Return the differences between modes, beside the phases of the whole step.

    Parameters
    ----------
    times
        Of `run_modes`.
    """
    by = {time.mode: time.summary for time in times}
    whole = by[Mode.train.value]
    found = []
    for part, with_it, without, phases in _PARTS:
        before = 0.0 if without is None else by[without.value].ms_per_step
        found.append(
            Marginal(
                part,
                (with_it.value, "" if without is None else without.value),
                by[with_it.value].ms_per_step - before,
                sum(whole.of(phase).ms_per_step for phase in phases),
            )
        )
    return found


def _run_mode(overrides: Sequence[str], mode: Mode, steps: int, path: Path) -> ModeTime:
    words = [
        *overrides,
        f"mode={mode.value}",
        f"mode_steps={steps}",
        f"directory='{path}'",
        "trainer.progress=false",
        "profiler.trace=false",
        "loggers.tensorboard=false",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "deltacell", "train", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().removeprefix("error: ")
        raise DeltacellError(f"the mode '{mode.value}' failed: {said}")
    return ModeTime(mode.value, summarise(read_phases(path / PHASES)))
