"""Runs as one scorer of gene sets: the mean and spread of their scores on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.models.scoring import Block, Rough, Scorer
from deltacell.ranking.filter import phenotypes_of
from deltacell.ranking.gene_sets import Piece, Scored
from deltacell.train.loaded_runs import LoadedRun
from deltacell.train.predictor import TrainedPredictor

FEW = 64  # up to this many candidates of a block are scored without refined bounds
SCALED_BY = 4096  # validation genotypes by which predictors are brought to one scale


def scorer_of(runs: Sequence[LoadedRun]) -> MeanOfRuns:
    """Return the mean of runs, brought to one scale."""
    return scorer_of_predictors(on_one_scale(runs))


def scorer_of_predictors(predictors: Sequence[TrainedPredictor]) -> MeanOfRuns:
    """Return the mean of predictors on one scale; raise if their genes differ."""
    first = predictors[0].cell.genes.systematic
    for number, predictor in enumerate(predictors, 1):
        if predictor.cell.genes.systematic != first:
            message = f"runs 1 and {number} have different genes or another gene order"
            raise InputError(message, code="different-genes")
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
        scores = self.score_each(ascending)
        mean = scores.mean(axis=0)
        spread = np.full(len(sets), np.nan)
        if len(scores) > 1:
            spread = scores.std(axis=0, ddof=1)
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
        scored = self.score(sets)
        is_between = (scored.score < above) & (scored.score > below)
        return scored.take(~is_between)

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
        names = ", ".join(sorted(set(learned)))
        message = f"the runs were trained on different phenotypes: {names}"
        raise InputError(message, code="different-phenotypes")
    predictors = [run.predictor for run in runs]
    if are_alike(runs):
        return predictors
    scores = [_scores_to_scale_by(run) for run in runs]
    means = np.array([score.mean().item() for score in scores])
    deviations = np.array([score.std(correction=0).item() for score in scores])
    varies = deviations > 0
    common = deviations[varies].mean() if varies.any() else 1.0
    factors = np.divide(common, deviations, out=np.zeros(len(runs)), where=varies)
    shifts = means.mean() - factors * means
    scales = zip(predictors, factors.tolist(), shifts.tolist(), strict=True)
    return [predictor.rescaled(factor, shift) for predictor, factor, shift in scales]


def _scores_to_scale_by(run: LoadedRun) -> torch.Tensor:
    """Return the scores of some genotypes of the validation part, or of training without one."""
    split = run.data.split
    rows = split.validation if len(split.validation) else split.train
    drawn = np.random.default_rng(split.seed).permutation(len(rows))[:SCALED_BY]
    genotypes, _ = run.data.part(rows[np.sort(drawn)])
    return run.predictor(genotypes).double()


def are_alike(runs: Sequence[LoadedRun]) -> bool:
    """Return whether all runs have the same model and model settings."""
    return all(run.config.model == runs[0].config.model for run in runs)
