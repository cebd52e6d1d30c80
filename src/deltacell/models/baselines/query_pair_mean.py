"""The mean score of the genotypes that share a pair of genes."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.baselines.baseline import (
    Doubles,
    FittedPredictor,
    Part,
    Report,
    State,
    loaded,
    saved,
)
from deltacell.models.baselines.gene_effects import GeneEffects, check_penalty, ridge
from deltacell.models.baselines.gene_sets import GeneOrder, GenePairs, GeneSets

Toward = Literal["additive", "mean"]


class QueryPairMean(FittedPredictor):
    r"""The mean of the training scores of a genotype's gene pairs, shrunk.

    .. math::

        \hat y(S) = \frac{k \, y_0(S) + \sum_{p \subset S} \sum_{b : p \subset S_b} w_b y_b}
                         {k + \sum_{p \subset S} \sum_{b : p \subset S_b} w_b}

    where p runs over the unordered pairs of genes of S. Genotypes carry no roles, so all pairs
    count; in a trigenic screen the query pair was measured with every array gene and the other two
    pairs a few times, so the sum is the query pair's. Where no pair was seen, and for a genotype of
    one gene, the score is y_0.

    Parameters
    ----------
    shrinkage
        The weight k of y_0, in genotypes of weight 1.
    toward
        What y_0 is: ``additive``, the sum of gene effects of `Additive`, or ``mean``, the mean of
        all training scores.
    penalty
        The penalty of the additive effects.
    """

    def __init__(
        self, shrinkage: float = 3.0, toward: Toward = "additive", penalty: float = 3.0
    ) -> None:
        if not (np.isfinite(shrinkage) and shrinkage > 0):
            raise InputError(f"the shrinkage is {shrinkage}; expected a finite number above 0")
        if toward not in get_args(Toward):
            raise InputError(
                f"cannot shrink toward '{toward}'; toward {' or '.join(get_args(Toward))}"
            )
        self.shrinkage = float(shrinkage)
        self.toward = toward
        self.penalty = check_penalty(penalty)

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Report,
    ) -> None:
        n = len(order)
        self._n_genes = n
        self._prior = (
            ridge(training, n, self.penalty)
            if self.toward == "additive"
            else GeneEffects(training.mean, np.zeros(n), np.zeros(n, dtype=bool))
        )
        pairs = training.sets.pairs()
        owner = np.repeat(np.arange(len(training.sets)), np.diff(pairs.offsets))
        self._seen, at = np.unique(self._keys(pairs), return_inverse=True)
        weight = training.weights[owner]
        self._weight = np.bincount(at, weight, minlength=len(self._seen))
        self._sum = np.bincount(at, weight * training.targets[owner], minlength=len(self._seen))

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        pairs = sets.pairs()
        owner = np.repeat(np.arange(len(sets)), np.diff(pairs.offsets))
        key = self._keys(pairs)
        at = np.searchsorted(self._seen, key)
        seen = at < len(self._seen)
        seen[seen] = self._seen[at[seen]] == key[seen]
        owner, at = owner[seen], at[seen]
        weight = np.bincount(owner, self._weight[at], minlength=len(sets))
        total = np.bincount(owner, self._sum[at], minlength=len(sets))
        prior = self._prior.score(sets)
        score: Doubles = (self.shrinkage * prior + total) / (self.shrinkage + weight)
        return score

    def _state(self) -> State:
        pairs = {"pairs": self._seen, "weight": self._weight, "sum": self._sum}
        return self._prior.state() | {name: saved(column) for name, column in pairs.items()}

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._n_genes = len(order)
        self._prior = GeneEffects.of_state(state)
        self._seen = loaded(state["pairs"])
        self._weight, self._sum = loaded(state["weight"]), loaded(state["sum"])

    def _keys(self, pairs: GenePairs) -> Ints:
        return pairs.first * self._n_genes + pairs.second
