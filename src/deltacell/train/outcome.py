"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deltacell.profile.limits import limits_sentence
from deltacell.profile.phase_rows import PhaseSummary
from deltacell.profile.record import read_run


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    path: Path
    signal: int  # the number of the signal that stopped it, or 0
    phases: PhaseSummary | None = None  # None if not recorded, and on ranks other than 0
    is_first: bool = True  # whether this is rank 0
    notices: tuple[str, ...] = ()  # of profilers that could not record everything

    @property
    def best(self) -> float | None:
        """The metric of the best checkpoint, if there was a validation."""
        best = read_run(self.path).best
        return None if best is None else best.value

    @property
    def best_metric(self) -> str | None:
        """The name of that metric, such as ``validation_pearson``."""
        best = read_run(self.path).best
        return None if best is None else best.metric

    @property
    def limits(self) -> str | None:
        """What limits the run, if its phases were recorded."""
        return None if self.phases is None else limits_sentence(self.phases)
