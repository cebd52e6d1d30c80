"""How a ranking relates to the additive prediction, and the first sets of its runs to each other.

In the field, a gene list that changed once shifted all predictions, and they no longer agreed with
anything. A predictor of interactions agrees with the additive model in part, so one that does not,
on a screen where the additive model predicts, is a reason to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from deltacell.base.arrays import Doubles, Ints, offsets_of
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import Part
from deltacell.models.fitted.single_effects import expected_scores
from deltacell.ranking.ensemble import MeanOfRuns
from deltacell.train.data import TrainingData
from deltacell.train.loaded_runs import LoadedRun

DRAWN = 2_000  # random sets that are scored
LEARNED_FROM = 200_000  # training sets at most
LEFT_OUT = 10  # one in so many training sets is left out to see what the additive model predicts
LEAST_AGREEMENT = 0.05  # a smaller correlation with the additive prediction is a warning,
LEAST_ADDITIVE = 0.15  # if the additive model itself has this on measured sets
PENALTY = 3.0  # as in the baseline `Additive`
_FEWEST = 3  # sets that a correlation needs


@dataclass(frozen=True)
class AgainstAdditive:
    """Pearson correlations; None where one is not defined."""

    n_sets: int  # of the ranking, drawn at random
    pearson: float | None  # of the predicted score and the additive prediction
    additive: float | None  # of the additive prediction and what was measured, on sets left out

    @property
    def is_doubtful(self) -> bool:
        """Whether a ranking disagrees with an additive model that does predict."""
        if self.additive is None or self.additive < LEAST_ADDITIVE:
            return False
        return self.pearson is None or self.pearson < LEAST_AGREEMENT

    @property
    def sentences(self) -> list[str]:
        """The correlations in words, and a warning if the ranking is doubtful."""
        if self.pearson is None:
            agreement = "is not defined"
        else:
            agreement = f"is {self.pearson:.3f}"
        own = "" if self.additive is None else f", which has {self.additive:.3f} on measured sets"
        sentence = (
            f"The Pearson correlation with the additive prediction{own}, {agreement} on "
            f"{self.n_sets:,} sets."
        )
        if not self.is_doubtful:
            return [sentence]
        return [
            f"Beware: {sentence[0].lower()}{sentence[1:]} Predictors that work agree with it in "
            "part: check that genes and networks are those of the training, and evaluate the run "
            "before using this list."
        ]


def against_additive(
    run: LoadedRun,
    scorer: MeanOfRuns,
    genes: Sequence[int],
    size: int,
    given: Sequence[int] = (),
) -> AgainstAdditive:
    """Compare the scores of random sets with the additive model of a run's training part."""
    sets = _drawn(genes, size, given)
    model = _AdditiveModel.of(run.data)
    predicted = scorer.score(sets).score.astype(np.float64) if len(sets) else np.zeros(0)
    return AgainstAdditive(
        n_sets=len(sets),
        pearson=_correlation(predicted, model.scores_of(sets)) if len(sets) else None,
        additive=model.own_correlation(),
    )


def _drawn(genes: Sequence[int], size: int, given: Sequence[int]) -> Ints:
    """Return distinct random sets of some genes, [m, size] ascending, with the given ones."""
    free = np.setdiff1d(genes, given)
    n_free = size - len(given)
    if n_free <= 0 or len(free) < n_free:
        return np.zeros((0, size), dtype=np.int64)
    drawn = np.random.default_rng(0).choice(free, (DRAWN, n_free))
    fixed = np.broadcast_to(np.array(given, dtype=np.int64), (DRAWN, len(given)))
    sets = np.sort(np.concatenate([fixed, drawn], axis=1), axis=1)
    distinct: Ints = np.unique(sets[(np.diff(sets, axis=1) > 0).all(axis=1)], axis=0)
    return distinct


@dataclass(frozen=True, eq=False)
class _AdditiveModel:
    """What the additive model learns from, on one part of the training sets and on all."""

    order: GeneOrder
    training: Part

    @classmethod
    def of(cls, data: TrainingData) -> _AdditiveModel:
        order = GeneOrder(data.cell.genes)
        shuffled = np.random.default_rng(0).permutation(data.split.train)
        genotypes, scores = data.part(np.sort(shuffled[:LEARNED_FROM]))
        return cls(order, Part(order.sets(genotypes), scores))

    def scores_of(self, sets: Ints) -> Doubles:
        """Return the additive prediction of sets of the cell's genes, [m, size]."""
        places = np.sort(self.order.place[sets], axis=1)
        offsets = offsets_of(np.full(len(sets), sets.shape[1]))
        return self._expected(self.training, GeneSets(places.ravel(), offsets))

    def own_correlation(self) -> float | None:
        """Return how the model predicts training sets that were left out of it."""
        n_sets = len(self.training.sets)
        is_left_out = np.random.default_rng(1).permutation(n_sets) % LEFT_OUT == 0
        rest = self.training.take(np.flatnonzero(~is_left_out))
        left_out = self.training.take(np.flatnonzero(is_left_out))
        if not len(rest.sets) or not len(left_out.sets):
            return None
        return _correlation(self._expected(rest, left_out.sets), left_out.targets)

    def _expected(self, training: Part, sets: GeneSets) -> Doubles:
        return expected_scores("additive", training, len(self.order), sets, penalty=PENALTY)


def _correlation(first: Doubles, second: Doubles) -> float | None:
    if len(first) < _FEWEST or not np.ptp(first) > 0 or not np.ptp(second) > 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


@dataclass(frozen=True)
class OverlapOfRuns:
    """How many of the first sets of an end each pair of runs has in common."""

    end: str
    n_first: int
    fewest: int
    most: int

    @property
    def sentence(self) -> str:
        """The overlap in words."""
        if self.fewest == self.most:
            counts = f"{self.fewest:,}"
        else:
            counts = f"{self.fewest:,} to {self.most:,}"
        return (
            f"Of the {self.n_first:,} {self.end} sets by each run alone, among those listed, two "
            f"runs have {counts} in common."
        )


def overlap_of_runs(
    scorer: MeanOfRuns, end: str, sets: Ints, *, first: int
) -> OverlapOfRuns | None:
    """Return the overlap of the first sets by each run, among sets of an end, [m, size].

    None for a single run, or if there are not more sets than are compared.
    """
    if len(sets) <= first:
        return None
    scores = scorer.score_each(np.sort(sets, axis=1))
    if len(scores) < 2:
        return None
    direction = 1 if end == "lowest" else -1
    heads = [set(np.argsort(direction * own, kind="stable")[:first].tolist()) for own in scores]
    common = [len(one & other) for one, other in combinations(heads, 2)]
    return OverlapOfRuns(end, first, min(common), max(common))
