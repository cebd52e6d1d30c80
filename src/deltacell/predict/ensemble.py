"""Runs as one scorer of gene sets: the mean and spread of their scores on one scale."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from deltacell.arrays import Doubles, Ints
from deltacell.errors import InputError
from deltacell.models import Dango, HeteroCell
from deltacell.predict.dango import DangoScorer, Rough
from deltacell.predict.gene_sets import Block, Piece, Scored
from deltacell.predict.status import phenotypes_of
from deltacell.propagate import Delta, Late
from deltacell.propagate.late import is_late
from deltacell.propagate.workers import in_any_worker, one_core, workers_for
from deltacell.screen import Genotypes
from deltacell.train.predictor import LoadedRun, Predictor, are_alike

FEW = 64  # up to this many candidates of a block skip the single-precision pass
SCALED_BY = 4096  # validation genotypes by which predictors are brought to one scale


def scorer_of(runs: Sequence[LoadedRun]) -> Ensemble:
    return scorer_of_predictors(on_one_scale(runs))


def scorer_of_predictors(predictors: Sequence[Predictor]) -> Ensemble:
    first = predictors[0].cell.genes.systematic
    dangos: list[DangoScorer] = []
    members: list[Scores] = []
    for number, predictor in enumerate(predictors, 1):
        genes, model = predictor.cell.genes.systematic, predictor.model
        if genes != first:
            what = f"runs 1 and {number} have different genes or another gene order"
            raise InputError(what, code="different-genes")
        if isinstance(model, Dango):
            dangos.append(DangoScorer(model, predictor.cell, predictor.standard))
            members.append(dangos[-1].scores)
        elif isinstance(model, HeteroCell):
            members.append(hetero_scores(predictor, model))
        else:
            members.append(predictor_scores(predictor))
    return Ensemble(members, dangos)


class Ensemble:
    """The mean of runs' scores in double precision, rounded once.

    The score of a set does not depend on its batch. If the ensemble ``prunes``, `candidates` does
    not score every set, so that good bounds save work.
    """

    def __init__(self, members: Sequence[Scores], dangos: Sequence[DangoScorer]) -> None:
        self._members, self._dangos = members, dangos
        self.prunes = len(dangos) == len(members)

    def score(self, sets: Ints) -> Scored:
        """Return sets [m, size], genes ascending, with the mean and spread of their scores."""
        ascending = np.sort(sets, axis=1)
        each = self.score_each(ascending)
        mean = each.mean(axis=0)
        spread = np.full(len(sets), np.nan) if len(each) == 1 else each.std(axis=0, ddof=1)
        return Scored(ascending, mean.astype(np.float32), spread.astype(np.float32))

    def score_each(self, ascending: Ints) -> Doubles:
        """Return the scores of sets of one size by each run, [runs, m]."""
        return np.stack([scores(ascending) for scores in self._members])

    def candidates(self, piece: Piece, above: float, below: float) -> Scored:
        """Return the sets of a piece that score ``above`` or more, ``below`` or less, or NaN.

        They are in the order of the piece, with the scores that `score` returns. The bounds are inf
        and -inf if an end is not wanted.
        """
        sets = self._near(piece, above, below) if isinstance(piece, Block) else piece
        found = self.score(sets)
        return found.take(~((found.score < above) & (found.score > below)))

    def _near(self, block: Block, above: float, below: float) -> Ints:
        if not self.prunes or block.size not in (2, 3) or not len(block):
            return block.sets()
        sums = Rough.mean([one.pair_sum(block) for one in self._dangos])
        sets = block.sets(sums.near(above, below))
        if len(sets) > FEW and block.size == 3:
            single = Rough.mean([one.single(block, sets) for one in self._dangos])
            sets = sets[single.near(above, below)]
        return sets


Scores = Callable[[Ints], Doubles]
"""From sets [m, size] of ascending genes to scores [m] in the unit of the screen."""


def hetero_scores(predictor: Predictor, model: HeteroCell) -> Scores:
    """Return the scores of a HeteroCell, which do not depend on the batch.

    Every mutant is propagated alone, on one core, which takes no longer than in a batch.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    # Not the strategy that is measured to be fastest: scores must be reproducible.
    late = is_late(model.mutant_hops(predictor.cell))
    model.propagation = Late() if late else Delta(tile=1)
    if model.local_head is not None:
        model.local_head.largest = None
    encoded = model.encode(predictor.cell)

    def one(genes: Ints) -> float:
        found = model.score(predictor.cell, encoded, genotypes_of(genes[None])).score
        return float(predictor.standard.undo(found.double()))

    def scores(sets: Ints) -> Doubles:
        with one_core(2):
            found = in_any_worker(one, list(sets), workers_for(torch.device("cpu"), len(sets)))
        return np.array(found, dtype=np.float64)

    return scores


def predictor_scores(predictor: Predictor) -> Scores:
    model = predictor.model
    if isinstance(model, nn.Module):
        # In double precision, so that a rounded score does not depend on the batch.
        model = copy.deepcopy(model).double().eval().requires_grad_(False)
    exact = replace(predictor, model=model)
    return lambda sets: exact(genotypes_of(sets)).double().numpy()


def genotypes_of(sets: Ints) -> Genotypes:
    genes = torch.from_numpy(np.ascontiguousarray(sets, dtype=np.int64)).flatten()
    return Genotypes(genes, torch.arange(len(sets) + 1) * sets.shape[1])


def on_one_scale(runs: Sequence[LoadedRun]) -> list[Predictor]:
    r"""Return the predictors of runs of one phenotype on one scale, so that none dominates.

    With :math:`m_i` and :math:`d_i` the mean and deviation of a predictor's scores over the
    validation part, they become :math:`\bar d (s - m_i) / d_i + \bar m`. Runs that differ only in
    the seed are not changed. The scores of a predictor with a deviation of 0 become the mean.
    """
    learned = [" and ".join(sorted(phenotypes_of(run.data.screen))) for run in runs]
    if len(set(learned)) > 1:
        what = f"the runs were trained on different phenotypes: {', '.join(sorted(set(learned)))}"
        raise InputError(what, code="different-phenotypes")
    predictors = [run.predictor for run in runs]
    if are_alike(runs):
        return predictors
    means, deviations = np.zeros((2, len(runs)))
    for i, run in enumerate(runs):
        split = run.data.split
        rows = split.validation if len(split.validation) else split.train
        drawn = np.random.default_rng(split.seed).permutation(len(rows))[:SCALED_BY]
        score = run.predictor(run.data.part(rows[np.sort(drawn)])[0]).double()
        means[i], deviations[i] = score.mean(), score.std(correction=0)
    telling = deviations > 0
    common = deviations[telling].mean() if telling.any() else 1.0
    factors = np.where(telling, common / np.where(telling, deviations, 1), 0)
    shifts = means.mean() - factors * means
    scales = zip(predictors, factors.tolist(), shifts.tolist(), strict=True)
    return [predictor.rescaled(factor, shift) for predictor, factor, shift in scales]
