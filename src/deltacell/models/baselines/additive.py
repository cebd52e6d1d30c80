"""Baselines in closed form: the mean, and additive effects of genes; ridge regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.base.arrays import Bools, Doubles
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.fitted.gene_sets import GeneSets
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Part, Parts, State
from deltacell.screen.gene_keys import set_keys


class GlobalMean(FittedPredictor):
    """The mean of the training scores."""

    def _fit(self, data: FitData) -> State:
        return {"mean": data.training.mean}

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        return Parts(np.full(len(sets), self._learned["mean"]))


@dataclass(eq=False)
class Additive(FittedPredictor):
    r"""Ridge regression on gene indicators, :math:`\hat y(S) = c + \sum_{g \in S} a_g`.

    The effect of a gene seen in ``penalty`` genotypes is about halved; unseen genes add nothing.
    """

    penalty: float = 3.0

    def _fit(self, data: FitData) -> State:
        return vars(ridge(data.training, len(data.order), self.penalty))

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        return Parts(GeneEffects.from_state(self._learned).score(sets))


@dataclass(frozen=True, eq=False)
class GeneEffects:
    r"""The parameters of :math:`\hat y(S) = c + \sum_{g \in S} a_g`."""

    intercept: float
    effect: Doubles  # 0 for unseen genes, [genes]
    seen: Bools  # which genes were in a genotype, [genes]

    @property
    def known(self) -> Doubles:
        """The effects, NaN for unseen genes."""
        return np.where(self.seen, self.effect, np.nan)

    def score(self, sets: GeneSets) -> Doubles:
        """Return the predicted score of each set, [sets]."""
        return self.intercept + sets.total(self.effect[sets.genes])

    @classmethod
    def from_state(cls, state: State) -> GeneEffects:
        """Return the effects in the learned state of a predictor."""
        return cls(state["intercept"], state["effect"], state["seen"])


def ridge(part: Part, n_genes: int, penalty: float) -> GeneEffects:
    r"""Return the effects a and the intercept c that minimise the penalised squared error.

    .. math:: \sum_b (y_b - c - \sum_{g \in S_b} a_g)^2 + \lambda \sum_g a_g^2.

    See `ridge_of_columns`. Without genotypes the result is 0.
    """
    n_sets = len(part.sets)
    genes = part.sets.genes
    if not n_sets:
        return GeneEffects(0.0, np.zeros(n_genes), np.zeros(n_genes, dtype=bool))
    shape = (n_sets, n_genes)
    indicators = sp.csr_array((np.ones(len(genes)), genes, part.sets.offsets), shape=shape)
    fit = ridge_of_columns(indicators, part.targets, np.full(n_genes, penalty))
    return GeneEffects(fit.intercept, fit.effect, np.bincount(genes, minlength=n_genes) > 0)


@dataclass(frozen=True, eq=False)
class ColumnEffects:
    """The coefficients of a ridge regression."""

    intercept: float
    effect: Doubles  # [columns]


def ridge_of_columns(x: sp.csr_array, targets: Doubles, penalties: Doubles) -> ColumnEffects:
    r"""Return the ridge regression of targets [n] on columns x [n, columns] of ones and zeros.

    With bars for means and :math:`\Lambda` the diagonal matrix of the penalties, the effects a
    solve the normal equations

    .. math:: (X^T X - n \bar x \bar x^T + \Lambda) a = X^T (y - \bar y)

    and the intercept is :math:`\bar y - \bar x^T a`. They are solved by conjugate gradients with
    a diagonal preconditioner, without forming a dense matrix.
    """
    n_rows, n_columns = x.shape
    transposed = x.T.tocsr()
    count: Doubles = transposed @ np.ones(n_rows)
    mean_x = count / n_rows
    mean_y = float(targets.mean())

    normal = scipy.sparse.linalg.LinearOperator(
        (n_columns, n_columns),
        matvec=lambda a: transposed @ (x @ a) - count * (mean_x @ a) + penalties * a,
        dtype=np.float64,
    )
    diagonal = count - n_rows * mean_x**2 + penalties
    effect, n_iterations_if_failed = scipy.sparse.linalg.cg(
        normal,
        transposed @ (targets - mean_y),
        rtol=1e-12,
        maxiter=10 * n_columns + 100,
        M=sp.diags_array(1 / diagonal),
    )
    if n_iterations_if_failed:
        what = f"ridge regression does not converge with penalty={penalties.min():g}"
        raise InputError(what, code="no-convergence", fix="Set a larger penalty.")
    return ColumnEffects(mean_y - float(mean_x @ effect), effect)


def cross_fitted_effects(
    part: Part,
    n_genes: int,
    penalty: float,
    *,
    folds: int,
    seed: int,
) -> Doubles:
    """Return the effect of each gene of each training set, learned from the other folds, [total].

    An effect learned from all sets would leak the score that it helps to predict. Repeats of a set
    share a fold. The effect of a gene that is in no other fold is NaN.
    """
    keys = set_keys(part.sets.genes, part.sets.offsets, n_genes)
    distinct, number = np.unique(keys, return_inverse=True)
    folds = min(folds, len(distinct))
    fold = (np.random.default_rng(seed).permutation(len(distinct)) % folds)[number.ravel()]
    known_without_fold: Doubles = np.empty((folds, n_genes))
    for left_out in range(folds):
        rest = part.take(np.flatnonzero(fold != left_out))
        known_without_fold[left_out] = ridge(rest, n_genes, penalty).known
    effects: Doubles = known_without_fold[fold[part.sets.owner], part.sets.genes]
    return effects
