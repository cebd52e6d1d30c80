"""What baselines share that add a prediction for each pair of genes to the additive one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.additive import GeneEffects, ridge
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs, GeneSets
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Part, Parts, State
from deltacell.profile.refitted import ChosenByValidation


class PairResiduals(FittedPredictor):
    r"""Additive effects and a score per pair, :math:`c + \sum_g a_g + w\, \mathrm{mean}\, r_{gh}`.

    The mean is over the pairs of a genotype. A subclass learns r from what the additive effects
    leave of the training scores. A genotype of three or more genes counts as a measurement of each
    of its pairs; one of a single gene has the additive score, and so has a pair of which nothing is
    known. The weight w is the least-squares slope on the validation part, at least 0, so that pairs
    do no harm where they say nothing, and 1 without a validation part.
    """

    penalty: float
    """The ridge penalty of the additive effects."""

    def _fit(self, data: FitData) -> State:
        training = data.training
        n_genes = len(data.order)
        effects = ridge(training, n_genes, self.penalty)
        residuals = training.targets - effects.score(training.sets)
        pairs = MeasuredPairs.of(training, residuals, n_genes)
        state = {**vars(effects), "weight": 1.0, **self._fit_pairs(pairs, data)}
        if data.validation is not None:
            self._load(data.cell, data.order, state)
            left = data.validation.targets - effects.score(data.validation.sets)
            state["weight"] = _slope(self._mean_pair_scores(data.validation.sets), left)
        if data.chosen is not None and data.chosen.weight is not None:
            state["weight"] = data.chosen.weight
        return state

    def chosen(self) -> ChosenByValidation:
        """Return the weight of the pairs."""
        return ChosenByValidation(weight=self._weight)

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._effects = GeneEffects.from_state(state)
        self._weight = float(state["weight"])

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        return Parts(self._effects.score(sets) + self._weight * self._mean_pair_scores(sets))

    def _mean_pair_scores(self, sets: GeneSets) -> Doubles:
        """Return the mean residual that is predicted for the pairs of each set, [sets]."""
        pairs = sets.pairs()
        n_pairs = np.diff(pairs.offsets)
        owner = np.repeat(np.arange(len(sets)), n_pairs)
        total = np.bincount(owner, self._pair_scores(pairs), minlength=len(sets))
        mean: Doubles = total / np.maximum(n_pairs, 1)
        return mean

    def _fit_pairs(self, pairs: MeasuredPairs, data: FitData) -> State:
        """Return what is learned from the residuals of the pairs."""
        raise NotImplementedError

    def _pair_scores(self, pairs: GenePairs) -> Doubles:
        """Return the residual r that is predicted for each pair, 0 if nothing is known of it."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class MeasuredPairs:
    """The mean score and residual of each measured pair, as symmetric matrices [genes, genes]."""

    scores: sp.csr_array
    residuals: sp.csr_array  # with the same entries

    @classmethod
    def of(cls, training: Part, residuals: Doubles, n_genes: int) -> MeasuredPairs:
        """Average the scores and the residuals [sets] of all sets that contain a pair."""
        pairs = training.sets.pairs()
        owner = np.repeat(np.arange(len(training.sets)), np.diff(pairs.offsets))
        keys, number = np.unique(pairs.first * n_genes + pairs.second, return_inverse=True)
        first, second = np.divmod(keys, n_genes)
        count = np.bincount(number, minlength=len(keys))

        def matrix_of(values: Doubles) -> sp.csr_array:
            """Return the mean of the sets' values for each pair."""
            mean = np.bincount(number, values[owner], minlength=len(keys)) / count
            return symmetric(first, second, mean, n_genes)

        return cls(matrix_of(training.targets), matrix_of(residuals))

    @property
    def n_genes(self) -> int:
        """The number of genes of the cell."""
        return int(self.residuals.shape[0])


def _slope(predicted: Doubles, residuals: Doubles) -> float:
    """Return the least-squares slope of residuals on predictions, at least 0."""
    centred = predicted - predicted.mean()
    variance = float(centred @ centred)
    return max(float(centred @ residuals) / variance, 0.0) if variance > 0 else 1.0


def symmetric(first: Ints, second: Ints, values: Doubles, n_genes: int) -> sp.csr_array:
    """Return a matrix [genes, genes] with each value at both places; zeros are kept."""
    row = np.concatenate([first, second])
    column = np.concatenate([second, first])
    both = np.concatenate([values, values])
    return sp.csr_array((both, (row, column)), shape=(n_genes, n_genes))


def matrix_state(matrix: sp.csr_array) -> State:
    """Return the arrays of a sparse matrix, which a checkpoint can hold; see `matrix_of_state`."""
    return {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}


def matrix_of_state(state: State, n_genes: int) -> sp.csr_array:
    """Return the square sparse matrix of its arrays."""
    arrays = (state["data"], state["indices"], state["indptr"])
    return sp.csr_array(arrays, shape=(n_genes, n_genes))
