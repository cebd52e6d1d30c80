"""The scores of a gene's pairs predicted from those of genes with similar interaction profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.pair_residuals import (
    MeasuredPairs,
    PairResiduals,
    matrix_of_state,
    matrix_state,
)
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs
from deltacell.models.fitted.predictor import FitData, State
from deltacell.models.pairs.messages import alike, by_first_gene


@dataclass(eq=False)
class NearestProfiles(PairResiduals):
    r"""Additive effects, and the residuals of the genes with the most similar interactions.

    .. math:: r_{gh} = \frac{\sum_k w_{gk} r_{kh} + \sum_k w_{hk} r_{gk}}
       {s + \sum_{k: kh} w_{gk} + \sum_{k: gk} w_{hk}}

    The weight w of two genes is the squared cosine of their rows of training scores, for the 100
    most similar genes of each; the sums in the denominator are over the measured pairs only, and
    s is the ``shrinkage``. A gene without training genotypes has no neighbours, so that only its
    partner's neighbours would vote, of which none was measured with it: the score is additive.
    """

    shrinkage: float = 0.05
    penalty: float = 3.0

    def _fit_pairs(self, pairs: MeasuredPairs, data: FitData) -> State:
        data.report("similar genes", 0, 1)
        (weights,) = alike(pairs.scores).weights
        return {
            "similar": matrix_state(weights.astype(np.float64)),
            "residuals": matrix_state(pairs.residuals),
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        super()._load(cell, order, state)
        self._similar = matrix_of_state(state["similar"], len(order))
        self._residuals = matrix_of_state(state["residuals"], len(order))
        measured = np.ones(len(self._residuals.data))
        self._measured = matrix_of_state({**state["residuals"], "data": measured}, len(order))

    def _pair_scores(self, pairs: GenePairs) -> Doubles:
        scores: Doubles = np.empty(len(pairs.first))
        for block in by_first_gene(pairs):
            residuals = block.entries(self._sums_over(self._residuals, block.genes))
            weights = block.entries(self._sums_over(self._measured, block.genes))
            scores[block.pairs] = residuals / (self.shrinkage + weights)
        return scores

    def _sums_over(self, values: sp.csr_array, genes: Ints) -> Doubles:
        """Return the sums of values over the neighbours of either gene, [len(genes), genes]."""
        of_neighbours = self._similar[genes] @ values
        of_partners_neighbours = values[genes] @ self._similar
        total: Doubles = (of_neighbours + of_partners_neighbours).toarray()
        return total
