"""What scores gene sets by one run."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.predict.block import Block
from deltacell.predict.pair_sum import PairSum

Doubles = npt.NDArray[np.float64]


class RunScorer(Protocol):
    """The scores of one run, exactly, and what is known of them at less cost."""

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        In double precision, so that rounded once they do not depend on what is scored with them.
        """

    def pair_sum(self, block: Block) -> PairSum | None:
        """Return sums over pairs that are near the scores of a block's sets, where there are."""
