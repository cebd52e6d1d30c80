"""What scores gene sets by one run."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints

Doubles = npt.NDArray[np.float64]


class RunScorer(Protocol):
    """The scores of one run in double precision, so that rounding once gives the same number."""

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""
