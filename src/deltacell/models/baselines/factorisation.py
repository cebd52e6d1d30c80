"""Factors of genes: the residuals of pairs as products of two vectors per gene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import Doubles
from deltacell.cell import Cell
from deltacell.models.baselines.low_rank import Eigen, leading_eigen
from deltacell.models.baselines.pair_residuals import MeasuredPairs, PairResiduals
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs
from deltacell.models.fitted.predictor import FitData, State


@dataclass(eq=False)
class MatrixFactorisation(PairResiduals):
    r"""Biased matrix factorisation: additive effects, and factors of genes for the residuals.

    .. math:: r_{gh} = (u_g \cdot v_h + u_h \cdot v_g) / 2

    The factors [genes, rank] minimise the squared error over the measured pairs, in both
    directions, plus :math:`\lambda (1 + \kappa n_g)(|u_g|^2 + |v_g|^2)`, with n the number of
    measured pairs of a gene, :math:`\lambda` the ``factor_penalty`` and :math:`\lambda\kappa` the
    ``factor_penalty_per_score``. They are found by alternating least squares, one gene at a time,
    from the leading eigenvectors of the residuals, so that neither a seed nor the names of the
    genes matter. Genes without training genotypes have factors 0.
    """

    rank: int = 64
    sweeps: int = 8
    factor_penalty: float = 1.0
    factor_penalty_per_score: float = 0.1
    penalty: float = 3.0

    def _fit_pairs(self, pairs: MeasuredPairs, data: FitData) -> State:
        residuals = pairs.residuals
        scale = float(np.sqrt(np.mean(residuals.data**2))) if residuals.nnz else 1.0
        scaled = residuals / scale if scale > 0 else residuals
        n_pairs = np.diff(residuals.indptr)
        penalties = self.factor_penalty + self.factor_penalty_per_score * n_pairs
        start = leading_eigen(scaled, Eigen.empty(pairs.n_genes), self.rank)
        right: Doubles = start.vectors * np.sqrt(np.abs(start.values))
        left: Doubles = np.zeros_like(right)
        for sweep in range(self.sweeps):
            data.report("factors", sweep, self.sweeps)
            left = solved_factors(scaled, right, penalties)
            right = solved_factors(scaled, left, penalties)
        return {"left": left * np.sqrt(scale), "right": right * np.sqrt(scale)}

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        super()._load(cell, order, state)
        self._left = state["left"]
        self._right = state["right"]

    def _pair_scores(self, pairs: GenePairs) -> Doubles:
        one_way = (self._left[pairs.first] * self._right[pairs.second]).sum(axis=1)
        other_way = (self._left[pairs.second] * self._right[pairs.first]).sum(axis=1)
        scores: Doubles = (one_way + other_way) / 2
        return scores


def solved_factors(scores: sp.csr_array, factors: Doubles, penalties: Doubles) -> Doubles:
    r"""Return the factors u [genes, rank] that fit the scores best if those of partners are given.

    Each row is the ridge regression :math:`(F^T F + \lambda_g I) u_g = F^T s_g` on the factors F
    of the genes that g was measured with; it is 0 for a gene without a measurement.
    """
    n_genes, rank = factors.shape
    solved = np.zeros((n_genes, rank))
    for gene in np.flatnonzero(np.diff(scores.indptr)):
        entries = slice(scores.indptr[gene], scores.indptr[gene + 1])
        of_partners = factors[scores.indices[entries]]
        normal = of_partners.T @ of_partners
        normal[np.diag_indices(rank)] += penalties[gene]
        solved[gene] = np.linalg.solve(normal, of_partners.T @ scores.data[entries])
    return solved
