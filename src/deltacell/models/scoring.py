"""Exact scores of gene sets, and cheap approximations with bounds, with which a ranking prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import comb, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.cell import Cell
from deltacell.screen import Genotypes

if TYPE_CHECKING:
    from deltacell.models.interface import Predictor, TargetScale

SETS_PER_CALL = 64  # of a predictor that has no opinion
ROUNDING = 2.0**-21  # relative rounding error of a sum or a comparison in single precision


@dataclass(frozen=True, eq=False)
class Block:
    """All sets with one gene from each axis.

    If neighbouring axes are the same array, each set of its genes occurs once, in the order of the
    array. Other axes share no gene.
    """

    axes: tuple[Ints, ...]

    def __len__(self) -> int:
        runs = [list(same) for _, same in groupby(self.axes, key=id)]
        return prod(comb(len(same[0]), len(same)) for same in runs)

    @property
    def size(self) -> int:
        """The number of genes of a set."""
        return len(self.axes)

    def sets(self, chosen: Bools | None = None) -> Ints:
        """Return all sets, [len, size], in the order of the axes, or those ``chosen`` by place."""
        lengths = [len(axis) for axis in self.axes]
        is_chosen = np.ones(lengths) if chosen is None else chosen
        places = np.stack(np.nonzero(is_chosen))  # on each axis, [size, sets]
        for i, (axis, following) in enumerate(pairwise(self.axes)):
            if axis is following:
                ascends = places[i] < places[i + 1]
                places = places[:, ascends]
        genes = [axis[rows] for axis, rows in zip(self.axes, places, strict=True)]
        return np.stack(genes, axis=1)


class Rough(NamedTuple):
    """Approximate scores of sets, of any shape, with an error of at most ``within``."""

    scores: torch.Tensor
    within: float

    @classmethod
    def mean(cls, each: Sequence[Rough]) -> Rough:
        """Return the mean of several; rounding errors need not cancel even if scores do."""
        if len(each) == 1:
            return each[0]
        largest_scores = [float(rough.scores.abs().max()) for rough in each]
        lost_by_rounding = ROUNDING * (len(each) + 1) * sum(largest_scores)
        within = (sum(rough.within for rough in each) + lost_by_rounding) / len(each)
        scores = torch.stack([rough.scores for rough in each])
        return cls(scores.mean(0), within)

    def near(self, above: float, below: float) -> Bools:
        """Return which sets may score ``above`` or more, ``below`` or less, or NaN."""
        slack = self.within + ROUNDING * float(self.scores.abs().max())
        between = (self.scores < above - slack) & (self.scores > below + slack)
        return (~between).numpy()


class Scorer:
    """Scores of gene sets in the unit of the screen; a set's score does not depend on others."""

    prunes: bool = False
    """Whether `rough` and `refined` can spare some sets the exact score."""

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] of sets of one size, [m, size], genes ascending."""
        raise NotImplementedError

    def rough(self, block: Block) -> Rough | None:
        """Return approximate scores of all sets of a block, by its axes; None to score all."""
        return None

    def refined(self, block: Block, sets: Ints) -> Rough | None:
        """Return better approximations [m] for some sets of a block; None to score all."""
        return None


class BatchScorer(Scorer):
    """Calls a predictor, as many sets at a time as it likes."""

    def __init__(self, predictor: Predictor, cell: Cell, scale: TargetScale) -> None:
        self._predictor = predictor
        self._cell = cell
        self._scale = scale

    @torch.no_grad()
    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] of sets [m, size], in the unit of the screen."""
        per_call = self._predictor.sets_per_call or SETS_PER_CALL
        scores: Doubles = np.empty(len(sets), dtype=np.float64)
        for begin in range(0, len(sets), per_call):
            part = sets[begin : begin + per_call]
            genotypes = self._predictor.on_device(self._cell, genotypes_of(part))
            prediction = self._predictor(self._cell, genotypes).on_host()
            scores[begin : begin + len(part)] = self._scale.undo(prediction.score).double().numpy()
        return scores


def genotypes_of(sets: Ints) -> Genotypes:
    """Return sets of one size, [m, size], as genotypes."""
    genes = torch.from_numpy(np.ascontiguousarray(sets, dtype=np.int64)).flatten()
    return Genotypes(genes, torch.arange(len(sets) + 1) * sets.shape[1])
