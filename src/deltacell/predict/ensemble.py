"""Runs as one scorer of gene sets: the mean of their scores on one scale, and how they differ."""

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

FEW = 64  # sets scored in double precision at once; of more, single precision leaves few
SCALED_BY = 4096  # genotypes of the validation part by which predictors are brought to one scale


def scorer_of(runs: Sequence[LoadedRun]) -> Ensemble:
    return scorer_of_predictors(on_one_scale(runs))


def scorer_of_predictors(predictors: Sequence[Predictor]) -> Ensemble:
    first = predictors[0].cell.genes.systematic
    dangos: list[DangoScorer] = []
    members: list[Scores] = []
    for number, predictor in enumerate(predictors, 1):
        genes, model = predictor.cell.genes.systematic, predictor.model
        if genes != first:
            differ = len(set(first) ^ set(genes))
            what = f"runs 1 and {number} are of different genes: {differ:,} differ, or their order"
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

    The score of a set does not depend on what is scored with it. Where the ensemble ``prunes``,
    `candidates` need not score every set, so that good bounds save work.
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
        """Return the sets of a piece that score ``above`` or more, or ``below`` or less.

        All of them, with the numbers that `score` gives, in the order of the piece, and those
        whose score is NaN. The bounds are inf and -inf where an end is not wanted.
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
    """Return the scores of a HeteroCell, each the same whatever is scored with it.

    Every mutant is propagated alone, on one core: it takes no longer than in a batch, and rounding
    has no company to depend on.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    # Not what this machine measures as fastest: the numbers must not depend on the day.
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
    """Return the scores of any other predictor, which is called with whole blocks of sets.

    A network is called in double precision, so that once rounded a score does not depend on what
    is scored with it.
    """
    model = predictor.model
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model).double().eval().requires_grad_(False)
    exact = replace(predictor, model=model)
    return lambda sets: exact(genotypes_of(sets)).double().numpy()


def genotypes_of(sets: Ints) -> Genotypes:
    genes = torch.from_numpy(np.ascontiguousarray(sets, dtype=np.int64)).flatten()
    return Genotypes(genes, torch.arange(len(sets) + 1) * sets.shape[1])


def on_one_scale(runs: Sequence[LoadedRun]) -> list[Predictor]:
    r"""Return the predictors of runs of one phenotype on one scale, so that none outweighs others.

    Each predictor's scores are brought to the mean 0 and the deviation 1 over the validation part,
    and then all to the mean of their deviations and of their means:
    :math:`\bar d (s - m_i) / d_i + \bar m`. Runs that differ in their seeds alone are left as they
    are. A predictor that gives all genotypes one score has no scale, and adds only the mean.
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
    return [
        one.rescaled(float(factor), float(shift))
        for one, factor, shift in zip(predictors, factors, shifts, strict=True)
    ]
