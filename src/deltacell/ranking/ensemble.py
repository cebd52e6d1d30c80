"""Runs as one scorer of gene sets: the mean and spread of their scores on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deltacell.base.arrays import Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.models.scoring import Block, Rough, Scorer
from deltacell.ranking.filter import phenotypes_of
from deltacell.ranking.gene_sets import Piece, Scored
from deltacell.train.predictor import LoadedRun, TrainedPredictor, are_alike

FEW = 64  # up to this many candidates of a block are scored without refined bounds
SCALED_BY = 4096  # validation genotypes by which predictors are brought to one scale


def scorer_of(runs: Sequence[LoadedRun]) -> MeanOfRuns:
    return scorer_of_predictors(on_one_scale(runs))


def scorer_of_predictors(predictors: Sequence[TrainedPredictor]) -> MeanOfRuns:
    first = predictors[0].cell.genes.systematic
    for number, predictor in enumerate(predictors, 1):
        if predictor.cell.genes.systematic != first:
            what = f"runs 1 and {number} have different genes or another gene order"
            raise InputError(what, code="different-genes")
    return MeanOfRuns([predictor.scorer() for predictor in predictors])


class MeanOfRuns:
    """The mean of runs' scores in double precision, rounded once.

    The score of a set does not depend on its batch. If the ensemble ``prunes``, `candidates` does
    not score every set, so that good bounds save work.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self._scorers = scorers
        self.prunes = all(scorer.prunes for scorer in scorers)

    def score(self, sets: Ints) -> Scored:
        """Return sets [m, size], genes ascending, with the mean and spread of their scores."""
        ascending = np.sort(sets, axis=1)
        each = self.score_each(ascending)
        mean = each.mean(axis=0)
        spread = np.full(len(sets), np.nan) if len(each) == 1 else each.std(axis=0, ddof=1)
        return Scored(ascending, mean.astype(np.float32), spread.astype(np.float32))

    def score_each(self, ascending: Ints) -> Doubles:
        """Return the scores of sets of one size by each run, [runs, m]."""
        return np.stack([scorer.scores(ascending) for scorer in self._scorers])

    def candidates(self, piece: Piece, above: float, below: float) -> Scored:
        """Return the sets of a piece that score ``above`` or more, ``below`` or less, or NaN.

        They are in the order of the piece, with the scores that `score` returns. The bounds are inf
        and -inf if an end is not wanted.
        """
        sets = self._near(piece, above, below) if isinstance(piece, Block) else piece
        found = self.score(sets)
        return found.take(~((found.score < above) & (found.score > below)))

    def _near(self, block: Block, above: float, below: float) -> Ints:
        """Return the sets of a block that may score ``above`` or more, ``below`` or less."""
        if not self.prunes or not len(block):
            return block.sets()
        rough = _mean([scorer.rough(block) for scorer in self._scorers])
        if rough is None:
            return block.sets()
        sets = block.sets(rough.near(above, below))
        if len(sets) <= FEW:
            return sets
        refined = _mean([scorer.refined(block, sets) for scorer in self._scorers])
        return sets if refined is None else sets[refined.near(above, below)]


def _mean(approximations: Sequence[Rough | None]) -> Rough | None:
    """Return the mean of approximations; None unless every scorer has one."""
    known = [rough for rough in approximations if rough is not None]
    return Rough.mean(known) if len(known) == len(approximations) else None


def on_one_scale(runs: Sequence[LoadedRun]) -> list[TrainedPredictor]:
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
