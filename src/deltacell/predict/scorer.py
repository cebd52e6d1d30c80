"""What scores gene sets: one run, or several together."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.predict.block import Block

Floats = npt.NDArray[np.float32]


class Scored(NamedTuple):
    """Gene sets with their scores.

    Parameters
    ----------
    sets
        Gene indices, [m, size].
    score
        The mean over runs, in the unit of the screen, [m].
    spread
        The standard deviation over runs, NaN where there is one run, [m].
    """

    sets: Ints
    score: Floats
    spread: Floats


class Scorer(Protocol):
    """Scores gene sets, the same set to the same number whatever is scored with it."""

    @property
    def prunes(self) -> bool:
        """Whether `candidates` need not score every set, so that good bounds save work."""

    def score(self, sets: Ints) -> Scored:
        """Return the scores of sets of one size, [m, size], in their order."""

    def candidates(self, block: Block, above: float, below: float) -> Scored:
        """Return the sets of a block that score ``above`` or more, or ``below`` or less.

        All of them, with the numbers that `score` gives, in the order of the block; what cannot
        be among them need not be scored. Those whose score is no number are among them.

        Parameters
        ----------
        block
            Of sets.
        above
            The least score wanted at the upper end; inf where none is.
        below
            The highest score wanted at the lower end; -inf where none is.
        """
