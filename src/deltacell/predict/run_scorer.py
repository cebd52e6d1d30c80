"""What scores gene sets by one run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltacell.arrays import Ints
from deltacell.predict.block import Block
from deltacell.predict.pair_sum import PairSum, may_reach
from deltacell.screen import Genotypes
from deltacell.train.predictor import Predictor

Doubles = npt.NDArray[np.float64]

SHARE = 2.0**-21
"""Share of its numbers that single precision may lose in a mean or a comparison, with room."""


class Rough(NamedTuple):
    """Numbers that are near the scores of sets.

    Parameters
    ----------
    scores
        In the unit of the screen, float32, of any shape.
    within
        What they may be away from the scores.
    """

    scores: torch.Tensor
    within: float

    @classmethod
    def mean(cls, of_each: Sequence[Rough]) -> Rough:
        """Return the mean of several, which may be small where what is rounded is not."""
        if len(of_each) == 1:
            return of_each[0]
        total = torch.stack([one.scores for one in of_each]).mean(0)
        lost = SHARE * (len(of_each) + 1) * sum(float(one.scores.abs().max()) for one in of_each)
        return cls(total, (sum(one.within for one in of_each) + lost) / len(of_each))

    def near(self, above: float, below: float) -> torch.Tensor:
        """Return which may score ``above`` or ``below``, see `Scorer.candidates`."""
        slack = self.within + SHARE * float(self.scores.abs().max())
        return may_reach(self.scores, self.scores, above - slack, below + slack)


class RunScorer(Protocol):
    """The scores of one run, exactly, and what is known of them at less cost.

    Parameters
    ----------
    bounded
        Whether `pair_sum` says something of pairs and larger sets.
    """

    bounded: bool

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        So exactly that, rounded once, they do not depend on what is scored with them.
        """

    def pair_sum(self, block: Block) -> PairSum | None:
        """Return sums over pairs that are near the scores of a block's sets, where there are."""

    def attention_within(self, block: Block) -> float | None:
        """Return how near `with_attention` comes, at hardly any cost; None where it does not."""

    def with_attention(self, block: Block) -> Rough | None:
        """Return what is nearer than sums over pairs, [len of each axis], where there is."""

    def single(self, block: Block, sets: Ints) -> Rough | None:
        """Return the scores of some sets of a block in single precision, where that is faster."""


class Unbounded:
    """A `RunScorer` of which nothing is known at less cost than the scores."""

    bounded = False

    def pair_sum(self, block: Block) -> PairSum | None:
        """Return None."""
        return None

    def attention_within(self, block: Block) -> float | None:
        """Return None."""
        return None

    def with_attention(self, block: Block) -> Rough | None:
        """Return None."""
        return None

    def single(self, block: Block, sets: Ints) -> Rough | None:
        """Return None."""
        return None


class PredictorScorer(Unbounded):
    """The scores of any predictor, which is called with whole blocks of sets.

    A network is called in double precision, so that once rounded a score does not depend on what is
    scored with it.

    Parameters
    ----------
    predictor
        Left as it is.
    """

    def __init__(self, predictor: Predictor) -> None:
        model = predictor.model
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._predictor = replace(predictor, model=model)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        found: Doubles = self._predictor(genotypes_of(sets)).double().cpu().numpy()
        return found


def genotypes_of(sets: Ints) -> Genotypes:
    """Return sets of one size, [m, size], as genotypes."""
    genes = torch.from_numpy(np.ascontiguousarray(sets, dtype=np.int64)).flatten()
    return Genotypes(genes, torch.arange(len(sets) + 1) * sets.shape[1])
