"""Baselines on the pairs of a genotype, for triples: means of query pairs, and effects of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.additive import GeneEffects, ridge, ridge_of_columns
from deltacell.models.fitted.gene_sets import GeneSets, look_up
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Parts, State


@dataclass(eq=False)
class QueryPair(FittedPredictor):
    """The mean training score of the genotypes with the same query pair; genes have no effects.

    It is shrunk to the mean y_0 of all training scores: ``(k y_0 + sum of the n scores) / (k + n)``
    with k the ``shrinkage``. A genotype without a known query pair has the score y_0. The query
    pair of a training genotype is the one of its pairs that most training genotypes contain; with
    equal counts, each of them is.
    """

    shrinkage: float = 3.0

    def _fit(self, data: FitData) -> State:
        training = data.training
        pairs = SetPairs.of(training.sets, len(data.order))
        known_pairs, number = np.unique(pairs.key, return_inverse=True)
        n_genotypes = np.bincount(number, minlength=len(known_pairs))
        is_query = _is_largest_of_owner(n_genotypes[number], pairs.owner, len(training.sets))
        scores = training.targets[pairs.owner[is_query]]
        query_number = number[is_query]
        return {
            "mean": training.mean,
            "pairs": known_pairs,
            "count": np.bincount(query_number, minlength=len(known_pairs)).astype(np.float64),
            "sum": np.bincount(query_number, scores, minlength=len(known_pairs)),
        }

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        state = self._learned
        count, total = _sums_of_sets(sets, cell.n_genes, state, "count", "sum")
        return Parts((self.shrinkage * state["mean"] + total) / (self.shrinkage + count))


@dataclass(eq=False)
class QueryPairMean(FittedPredictor):
    """The mean training score of the genotypes that contain a pair of a genotype's genes.

    It is shrunk to the score y_0 of `Additive`: ``(k y_0 + sum of the n scores) / (k + n)`` with k
    the ``shrinkage``. In a trigenic screen nearly all of these pairs are query pairs.
    """

    shrinkage: float = 3.0
    penalty: float = 3.0

    def _fit(self, data: FitData) -> State:
        training = data.training
        n_genes = len(data.order)
        pairs = SetPairs.of(training.sets, n_genes)
        known_pairs, number = np.unique(pairs.key, return_inverse=True)
        scores = training.targets[pairs.owner]
        return {
            **vars(ridge(training, n_genes, self.penalty)),
            "pairs": known_pairs,
            "weight": np.bincount(number, minlength=len(known_pairs)).astype(np.float64),
            "sum": np.bincount(number, scores, minlength=len(known_pairs)),
        }

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        state = self._learned
        count, total = _sums_of_sets(sets, cell.n_genes, state, "weight", "sum")
        prior = GeneEffects.from_state(state).score(sets)
        return Parts((self.shrinkage * prior + total) / (self.shrinkage + count))


@dataclass(eq=False)
class AdditivePair(FittedPredictor):
    r"""Ridge regression on genes and on pairs, :math:`c + \sum_g a_g + \sum_{\{g,h\}} b_{gh}`.

    The sums are over the genes and the pairs of a genotype, and the effects of genes and pairs have
    penalties of their own. Genes and pairs that no training genotype has add nothing. In a screen
    of pairs, each of which occurs once, it is close to `Additive`.
    """

    penalty: float = 3.0
    pair_penalty: float = 10.0

    def _fit(self, data: FitData) -> State:
        sets = data.training.sets
        n_genes = len(data.order)
        pairs = SetPairs.of(sets, n_genes)
        known_pairs, number = np.unique(pairs.key, return_inverse=True)
        row = np.concatenate([sets.owner, pairs.owner])
        column = np.concatenate([sets.genes, n_genes + number])
        shape = (len(sets), n_genes + len(known_pairs))
        ones = np.ones(len(row))
        indicators = sp.csr_array((ones, (row, column)), shape=shape)
        penalties = np.repeat([self.penalty, self.pair_penalty], [n_genes, len(known_pairs)])
        fit = ridge_of_columns(indicators, data.training.targets, penalties)
        return {
            "intercept": fit.intercept,
            "effect": fit.effect[:n_genes],
            "pairs": known_pairs,
            "pair_effect": fit.effect[n_genes:],
        }

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        state = self._learned
        (of_pairs,) = _sums_of_sets(sets, cell.n_genes, state, "pair_effect")
        of_genes = sets.total(state["effect"][sets.genes])
        return Parts(state["intercept"] + of_genes + of_pairs)


@dataclass(frozen=True, eq=False)
class SetPairs:
    """All pairs of genes within sets; both arrays are [pairs]."""

    owner: Ints  # the set of each pair
    key: Ints  # smaller gene * n_genes + larger gene

    @classmethod
    def of(cls, sets: GeneSets, n_genes: int) -> SetPairs:
        """Return the pairs of each set, by ascending genes; a set of one gene has none."""
        pairs = sets.pairs()
        owner = np.repeat(np.arange(len(sets)), np.diff(pairs.offsets))
        return cls(owner, pairs.first * n_genes + pairs.second)


def _sums_of_sets(sets: GeneSets, n_genes: int, state: State, *columns: str) -> list[Doubles]:
    """Return the sums of what is known of the pairs of each set: [sets], for each column.

    ``state["pairs"]`` are the keys of the known pairs; the columns have one number for each.
    """
    pairs = SetPairs.of(sets, n_genes)
    place, is_known = look_up(state["pairs"], pairs.key)
    owner = pairs.owner[is_known]
    known_place = place[is_known]
    sums: list[Doubles] = []
    for column in columns:
        of_pairs = state[column][known_place]
        of_sets = np.bincount(owner, of_pairs, minlength=len(sets))
        sums.append(of_sets.astype(np.float64))
    return sums


def _is_largest_of_owner(values: Ints, owner: Ints, n_owners: int) -> Bools:
    """Return which values equal the largest one of their owner."""
    largest: Ints = np.zeros(n_owners, dtype=np.int64)
    np.maximum.at(largest, owner, values)
    is_largest: Bools = values == largest[owner]
    return is_largest
