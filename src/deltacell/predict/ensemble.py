"""Several runs as one scorer: the mean of their scores on one scale, and how far they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from deltacell.arrays import Ints
from deltacell.errors import InputError
from deltacell.models import Dango, HeteroCell
from deltacell.predict.dango_scorer import DangoScorer
from deltacell.predict.gene_sets import Block
from deltacell.predict.scorers import (
    Doubles,
    HeteroScorer,
    PairSum,
    PredictorScorer,
    Rough,
    RunScorer,
    Scored,
)
from deltacell.predict.status import phenotypes_of
from deltacell.train.loaded_run import LoadedRun, are_alike
from deltacell.train.predictor import Predictor

T = TypeVar("T")

FEW = 64
"""Sets that are scored in double precision at once; of more, single precision leaves few."""

SCALED_BY = 4096
"""Genotypes of the validation part by which predictors are brought to one scale."""

MANY = 2048
"""Sets of a block from which on it is worth to look at attention before they are scored."""


def scorer_of(runs: Sequence[LoadedRun], predictors: Sequence[Predictor] | None = None) -> Ensemble:
    """Return the scorer of one run, or of several together.

    Parameters
    ----------
    runs
        One or more, of the same genes and phenotypes.
    predictors
        Theirs on one scale, where those are at hand.
    """
    _check_same_phenotypes(runs)
    names = [str(run.record.path) for run in runs]
    return scorer_of_predictors(on_one_scale(runs) if predictors is None else predictors, names)


def on_one_scale(runs: Sequence[LoadedRun]) -> list[Predictor]:
    r"""Return the predictors of runs on one scale, so that none outweighs the others in a mean.

    Each predictor's scores are brought to the mean 0 and the deviation 1 over the validation part,
    and then all to the mean of their deviations and of their means:
    :math:`\bar d (s - m_i) / d_i + \bar m`. One run, and runs that differ in their seeds alone,
    are on one scale as they are. A predictor that says the same of all genotypes has no scale, and
    adds nothing but the mean.

    Parameters
    ----------
    runs
        One or more.
    """
    predictors = [run.predictor for run in runs]
    if are_alike(runs):
        return predictors
    means, deviations = np.array([_scale(run) for run in runs]).T
    telling = deviations > 0
    common = deviations[telling].mean() if telling.any() else 1.0
    factors = np.where(telling, common / np.where(telling, deviations, 1), 0)
    shifts = means.mean() - factors * means
    return [
        one.rescaled(float(factor), float(shift))
        for one, factor, shift in zip(predictors, factors, shifts, strict=True)
    ]


def _scale(run: LoadedRun) -> tuple[float, float]:
    """Return the mean and the deviation of a run's scores over its validation part."""
    split = run.data.split
    rows = split.validation if len(split.validation) else split.train
    if len(rows) > SCALED_BY:
        drawn = np.random.default_rng(split.seed).permutation(len(rows))[:SCALED_BY]
        rows = rows[np.sort(drawn)]
    score = run.predictor(run.data.part(rows)[0]).double()
    return float(score.mean()), float(score.std(correction=0))


def scorer_of_predictors(
    predictors: Sequence[Predictor], names: Sequence[str] | None = None
) -> Ensemble:
    """Return the scorer of one predictor, or of several together.

    Parameters
    ----------
    predictors
        One or more, of the same genes.
    names
        What to call each where it does not fit; its number where not given.
    """
    if not predictors:
        raise InputError("no run was given")
    names = [f"run {i + 1}" for i in range(len(predictors))] if names is None else names
    _check_same_genes(predictors, names)
    return Ensemble([_scorer_of_one(predictor) for predictor in predictors])


class Ensemble:
    """The mean of runs' scores in double precision, rounded once.

    Parameters
    ----------
    members
        What scores by each run.
    """

    def __init__(self, members: Sequence[RunScorer]) -> None:
        self._members = tuple(members)
        self.prunes = all(member.bounded for member in members)

    def score(self, sets: Ints) -> Scored:
        """Return the scores of sets of one size, [m, size], in their order."""
        each = self.of_each(sets)
        mean = each.mean(axis=0)
        spread = np.full(len(sets), np.nan) if len(each) == 1 else each.std(axis=0, ddof=1)
        return Scored(sets, mean.astype(np.float32), spread.astype(np.float32))

    def of_each(self, sets: Ints) -> Doubles:
        """Return the scores of sets of one size by each run, [runs, m]."""
        ascending = np.sort(sets, axis=1)
        return np.stack([member.scores(ascending) for member in self._members])

    def candidates(self, block: Block, above: float, below: float) -> Scored:
        """Return the sets of a block that score ``above`` or more, or ``below`` or less."""
        found = self.score(self._near(block, above, below))
        # What is no number goes on too: whoever asked has to know.
        wanted = ~((found.score < above) & (found.score > below))
        return Scored(found.sets[wanted], found.score[wanted], found.spread[wanted])

    def _near(self, block: Block, above: float, below: float) -> Ints:
        """Return the sets of a block that may be candidates."""
        if not len(block):
            return block.sets()
        sums = _all_of([member.pair_sum(block) for member in self._members])
        if sums is None:
            return block.sets()
        sum_ = PairSum.mean(sums)
        shared = [block.axes[i] is block.axes[i + 1] for i in range(block.size - 1)]
        places = sum_.near(shared, above, below)
        if len(places) > MANY and self._attention_tells(sum_, block, shared, above, below):
            rough = _all_of([member.with_attention(block) for member in self._members])
            if rough is not None:
                near = Rough.mean(rough).near(above, below)
                places = places[near[tuple(places.t())]]
        found = places.cpu().numpy()
        sets = np.stack([axis[found[:, i]] for i, axis in enumerate(block.axes)], axis=1)
        if len(sets) > FEW:
            single = _all_of([member.single(block, sets) for member in self._members])
            if single is not None:
                sets = sets[Rough.mean(single).near(above, below).cpu().numpy()]
        return sets

    def _attention_tells(
        self, sum_: PairSum, block: Block, shared: Sequence[bool], above: float, below: float
    ) -> bool:
        """Return whether the attention of one layer would leave few of a block's sets."""
        within = _all_of([member.attention_within(block) for member in self._members])
        if within is None:
            return False
        nearer = PairSum(sum_.tables, sum(within) / len(within))
        return 2 * len(nearer.near(shared, above, below)) < len(block)


def _scorer_of_one(predictor: Predictor) -> RunScorer:
    model = predictor.model
    if isinstance(model, Dango):
        return DangoScorer(model, predictor.cell, predictor.standard)
    if isinstance(model, HeteroCell):
        return HeteroScorer(model, predictor.cell, predictor.standard)
    return PredictorScorer(predictor)


def _check_same_genes(predictors: Sequence[Predictor], names: Sequence[str]) -> None:
    first = predictors[0].cell.genes.systematic
    for predictor, name in zip(predictors, names, strict=True):
        genes = predictor.cell.genes.systematic
        if genes != first:
            other = len(set(first) ^ set(genes))
            raise InputError(
                f"{name} has {len(genes):,} genes and {names[0]} has {len(first):,}; {other:,} are "
                "in one of them only, or the order differs",
                fix="Give runs that were trained on the same cell and screen.",
            )


def _check_same_phenotypes(runs: Sequence[LoadedRun]) -> None:
    """Raise where the mean of scores would be one of different things."""
    each = [sorted(phenotypes_of(run.data.screen)) for run in runs]
    for run, phenotypes in zip(runs, each, strict=True):
        if phenotypes != each[0]:
            raise InputError(
                f"{run.record.path} was trained on the phenotype {' and '.join(phenotypes)}, and "
                f"{runs[0].record.path} on {' and '.join(each[0])}: their scores have no mean",
                fix="Give runs of one phenotype.",
            )


def _all_of(values: Sequence[T | None]) -> list[T] | None:
    """Return the values, or None where one of them is."""
    there = [value for value in values if value is not None]
    return there if len(there) == len(values) else None
