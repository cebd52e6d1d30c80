"""Whether the steps of a run took about the same time from its beginning to its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.profile.phase_rows import PHASES

RULE = (
    "The steady steps are cut into ten parts of the run, or into fewer so that each has at least 3 "
    "steps. They are uneven where the median step of the slowest part takes 3 times that of the "
    "fastest or more. A phase that is a tenth of the step in either part is a large one, and took "
    "part in it where its own median is twice as long or more."
)


@dataclass(frozen=True)
class Uneven:
    """The fastest and the slowest part of a run, where they are far apart; see `RULE`.

    Parameters
    ----------
    fast_s, slow_s
        Median seconds of a step in either.
    fast_steps, slow_steps
        The first and the last step of either.
    changed
        The large phases that take longer in the slow one.
    unchanged
        The large phases that do not.
    """

    fast_s: float
    slow_s: float
    fast_steps: tuple[int, int]
    slow_steps: tuple[int, int]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]

    @property
    def is_everywhere(self) -> bool:
        """Whether several large phases take longer and none does not.

        That is what other programs on the machine do, and hardly ever a part of the program.
        """
        return len(self.changed) > 1 and not self.unchanged


def unevenness(steady: pl.DataFrame) -> Uneven | None:
    """Return the fastest and the slowest part of a run; None where they are not far apart.

    Parameters
    ----------
    steady
        Of `deltacell.profile.steady_steps`.
    """
    count = min(_PARTS, len(steady) // _FEWEST)
    if count < 2:
        return None
    parts = np.array_split(np.arange(len(steady)), count)
    walls = steady["wall_s"].to_numpy()
    medians = [float(np.median(walls[part])) for part in parts]
    fast, slow = (parts[place] for place in (np.argmin(medians), np.argmax(medians)))
    fast_s, slow_s = min(medians), max(medians)
    if not fast_s > 0 or slow_s < _UNEVEN * fast_s:
        return None
    changed: list[str] = []
    unchanged: list[str] = []
    for phase in PHASES:
        seconds = steady[f"{phase}_s"].to_numpy()
        before, after = (float(np.median(seconds[part])) for part in (fast, slow))
        if before >= _LARGE * fast_s or after >= _LARGE * slow_s:
            (changed if after >= _CHANGED * before else unchanged).append(phase)
    steps = steady["step"].to_numpy()
    return Uneven(
        fast_s,
        slow_s,
        (int(steps[fast[0]]), int(steps[fast[-1]])),
        (int(steps[slow[0]]), int(steps[slow[-1]])),
        tuple(changed),
        tuple(unchanged),
    )


_PARTS = 10
_FEWEST = 3
_UNEVEN = 3.0
_CHANGED = 2.0
_LARGE = 0.1
