"""What scores gene sets by one run: the protocol, any predictor, and HeteroCell."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import HeteroCell
from deltacell.predict.gene_sets import Block
from deltacell.propagate import Delta
from deltacell.propagate.workers import in_any_worker, one_core, workers_for
from deltacell.screen import Genotypes
from deltacell.train.data import Standard
from deltacell.train.predictor import Predictor

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


ROUNDING = 2.0**-22
"""Share of its numbers that single precision may lose in an addition or a comparison, fourfold."""


class PairSum(NamedTuple):
    """``sum over a < b of tables[a, b]``, within ``within`` of the scores of a block's sets.

    Parameters
    ----------
    tables
        One for each two axes, in the order of `itertools.combinations`, float32 [len, len].
    within
        What the sums may be away from the scores.
    """

    tables: tuple[torch.Tensor, ...]
    within: float

    @classmethod
    def mean(cls, sums: Sequence[PairSum]) -> PairSum:
        """Return the mean of several.

        What they lose in rounding is a share of their own numbers, which may cancel in the mean.
        """
        if len(sums) == 1:
            return sums[0]
        each = zip(*(one.tables for one in sums), strict=True)
        tables = tuple(torch.stack(of_axes).mean(0) for of_axes in each)
        size = sum(float(table.abs().max()) for one in sums for table in one.tables)
        lost = ROUNDING * (len(sums) + 1) * size
        return cls(tables, (sum(one.within for one in sums) + lost) / len(sums))

    def near(self, shared: Sequence[bool], above: float, below: float) -> torch.Tensor:
        """Return the places [m, size], in order, of sets that may score ``above`` or ``below``.

        Parameters
        ----------
        shared
            Whether each axis after the first is the one before it; then places ascend.
        above, below
            Of the scores wanted, see `Scorer.candidates`.
        """
        size = len(shared) + 1
        ends = [(float(table.min()), float(table.max())) for table in self.tables]
        lowest, highest = (sum(end) for end in zip(*ends, strict=True))
        largest = self.within + sum(max(-low, high) for low, high in ends)
        slack = self.within + ROUNDING * (len(ends) + 1) * largest
        above, below = above - slack, below + slack
        if highest < above and lowest > below:
            return self.tables[0].new_empty((0, size), dtype=torch.int64)
        pairs = combinations(range(size), 2)
        places = _near(dict(zip(pairs, self.tables, strict=True)), above, below)
        for axis, same in enumerate(shared):
            if same:
                places = places[places[:, axis] < places[:, axis + 1]]
        return places


def may_reach(
    lowest: torch.Tensor, highest: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    """Return which ranges of scores may come to ``above`` or more, or ``below`` or less.

    One that is no number may, so that its sets are scored and the error is seen.

    Parameters
    ----------
    lowest, highest
        The ends of each range.
    above, below
        Of the scores wanted, see `Scorer.candidates`.
    """
    return ~((highest < above) & (lowest > below))


def _near(tables: dict[tuple[int, int], torch.Tensor], above: float, below: float) -> torch.Tensor:
    size = max(pair[1] for pair in tables) + 1
    if size == 2:
        only = tables[0, 1]
        return may_reach(only, only, above, below).nonzero()
    if size == 3:
        return _near_of_three(tables[0, 1], tables[0, 2], tables[1, 2], above, below)
    found = []
    for first in range(len(tables[0, 1])):
        # With its gene given, what the first axis adds is a number for each gene of the others.
        rest = {
            (a - 1, b - 1): table + tables[0, b][first] if a == 1 else table
            for (a, b), table in tables.items()
            if a > 0
        }
        rest[0, 1] = rest[0, 1] + tables[0, 1][first].unsqueeze(1)
        places = _near(rest, above, below)
        found.append(torch.nn.functional.pad(places, (1, 0), value=first))
    return torch.cat(found)


def _near_of_three(
    ab: torch.Tensor, ac: torch.Tensor, bc: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    # The third axis comes first, because the ends over the first axis are found fastest.
    without_ab = ac.t().unsqueeze(2) + bc.t().unsqueeze(1)
    lowest, highest = without_ab.amin(0) + ab, without_ab.amax(0) + ab
    first, second = may_reach(lowest, highest, above, below).nonzero(as_tuple=True)
    rows = without_ab[:, first, second].t() + ab[first, second].unsqueeze(1)
    row, third = may_reach(rows, rows, above, below).nonzero(as_tuple=True)
    return torch.stack([first[row], second[row], third], 1)


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


AT_A_TIME = 64
"""Mutants propagated together on a device that is no CPU."""


class HeteroScorer(Unbounded):
    """Scores of a HeteroCell, each the same whatever is scored with it.

    On a CPU every mutant is propagated alone, by `Delta`, on one core: it takes no longer than in
    a batch, and rounding has no company to depend on. Elsewhere they go in batches, in double
    precision, whose rounding is gone where a score is rounded once.

    Parameters
    ----------
    model
        With its weights; left as it is.
    cell
        The wild type.
    standard
        The scale of its targets.
    """

    def __init__(self, model: HeteroCell, cell: Cell, standard: Standard) -> None:
        self._device = model.encoder.embedding.device
        self._alone = self._device.type == "cpu"
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        if self._alone:
            # Not by what this machine measures: the numbers are to be the same on another day.
            self._model.propagation = Delta(tile=1)
        else:
            self._model.double()
        if self._model.local_head is not None:
            self._model.local_head.largest = None
        self._cell = cell
        self._standard = standard
        self._encoded = self._model.encode(cell)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        step = 1 if self._alone else AT_A_TIME
        parts = [sets[begin : begin + step] for begin in range(0, len(sets), step)]
        workers = workers_for(self._device, len(parts))
        with one_core(2 if self._alone else 1):
            found = in_any_worker(self._scores, parts, workers)
        return np.concatenate(found) if found else np.empty(0)

    def _scores(self, sets: Ints) -> Doubles:
        found = self._model.score(self._cell, self._encoded, genotypes_of(sets)).score
        scores: Doubles = self._standard.undo(found.double()).cpu().numpy()
        return scores
