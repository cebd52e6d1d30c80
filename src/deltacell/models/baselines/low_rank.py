"""Low-rank imputation: unmeasured pairs are filled in by the leading eigenvectors, repeatedly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.pair_residuals import MeasuredPairs, PairResiduals
from deltacell.models.eigenvectors import leading_eigenvectors
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs
from deltacell.models.fitted.predictor import FitData, State

_SMALL_ENOUGH_FOR_DENSE = 256
_TOLERANCE = 1e-3  # of the eigenvectors of large matrices, which the next step computes anew


@dataclass(eq=False)
class LowRank(PairResiduals):
    r"""Additive effects, and the symmetric matrix of residuals completed with a low rank.

    Soft-impute (Mazumder, Hastie and Tibshirani, JMLR 2010), for symmetric matrices: unmeasured
    pairs are filled with the present estimate, which is 0 at first, and the estimate becomes
    :math:`Q\,S(\Lambda)\,Q^T` with the leading ``rank`` eigenvectors Q by magnitude, whose
    eigenvalues are drawn towards 0 by the ``threshold``, a share of the largest of the first
    matrix. This is repeated ``steps`` times. Genes without training genotypes have the estimate 0.
    """

    rank: int = 96
    threshold: float = 0.3
    steps: int = 12
    penalty: float = 3.0

    def _fit_pairs(self, pairs: MeasuredPairs, data: FitData) -> State:
        measured = pairs.residuals.tocoo()
        estimate = Eigen.empty(pairs.n_genes)
        reduced_by = 0.0
        for step in range(self.steps):
            data.report("eigenvectors", step, self.steps)
            left = measured.data - estimate.entries(measured.row, measured.col)
            remaining = sp.csr_array((left, (measured.row, measured.col)), shape=measured.shape)
            leading = leading_eigen(remaining, estimate, self.rank)
            if step == 0:
                reduced_by = self.threshold * float(np.abs(leading.values).max(initial=0))
            shrunk = np.maximum(np.abs(leading.values) - reduced_by, 0)
            estimate = Eigen(leading.vectors, np.sign(leading.values) * shrunk)
        has_pairs = np.diff(pairs.residuals.indptr) > 0
        return {"vectors": estimate.vectors * has_pairs[:, None], "values": estimate.values}

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        super()._load(cell, order, state)
        self._estimate = Eigen(state["vectors"], state["values"])

    def _pair_scores(self, pairs: GenePairs) -> Doubles:
        return self._estimate.entries(pairs.first, pairs.second)


@dataclass(frozen=True, eq=False)
class Eigen:
    """A symmetric matrix by some of its eigenvectors [genes, rank] and eigenvalues [rank]."""

    vectors: Doubles
    values: Doubles

    @classmethod
    def empty(cls, n_genes: int) -> Eigen:
        """Return the matrix of zeros."""
        return cls(np.zeros((n_genes, 0)), np.zeros(0))

    def entries(self, row: Ints, column: Ints) -> Doubles:
        """Return the entries at places of the matrix, [places]; symmetric to the last bit."""
        entries: Doubles = ((self.vectors[row] * self.vectors[column]) * self.values).sum(axis=1)
        return entries

    def times(self, x: Doubles) -> Doubles:
        """Return the product with a vector x [genes]."""
        product: Doubles = self.vectors @ (self.values * (self.vectors.T @ x))
        return product


def leading_eigen(sparse: sp.csr_array, low_rank: Eigen, rank: int) -> Eigen:
    """Return the eigenvectors of the sum of a sparse and a low-rank matrix, by magnitude."""
    n_genes = sparse.shape[0]
    if n_genes <= max(_SMALL_ENOUGH_FOR_DENSE, rank + 1):
        filled = (low_rank.vectors * low_rank.values) @ low_rank.vectors.T
        values, vectors = np.linalg.eigh(sparse.toarray() + filled)
        largest = np.argsort(-np.abs(values), kind="stable")[:rank]
        return Eigen(vectors[:, largest], values[largest])
    operator = scipy.sparse.linalg.LinearOperator(
        (n_genes, n_genes),
        matvec=lambda x: sparse @ x + low_rank.times(x),
        dtype=np.float64,
    )
    values, vectors = leading_eigenvectors(operator, rank, tolerance=_TOLERANCE)
    return Eigen(vectors, values)
