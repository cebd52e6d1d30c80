"""Additive effects of genes, by ridge regression on gene indicators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError
from deltacell.models.baselines.baseline import Doubles, Part, State, loaded, saved
from deltacell.models.baselines.gene_sets import GeneSets

_RELATIVE_RESIDUAL = 1e-12


@dataclass(frozen=True, eq=False)
class GeneEffects:
    r"""What each gene adds to a score, :math:`\hat y(S) = c + \sum_{g \in S} a_g`.

    Parameters
    ----------
    intercept
        The score c of a set of genes without effect.
    effect
        The effect a of each gene, [genes]; 0 for a gene that was never seen.
    seen
        Which genes were in a genotype of positive weight, [genes].
    """

    intercept: float
    effect: Doubles
    seen: Bools

    @property
    def known(self) -> Doubles:
        """The effect of each gene, NaN for a gene that was never seen, [genes]."""
        return np.where(self.seen, self.effect, np.nan)

    def state(self) -> State:
        """Return it as a part of a predictor's state."""
        return {"intercept": self.intercept, "effect": saved(self.effect), "seen": saved(self.seen)}

    @classmethod
    def of_state(cls, state: State) -> GeneEffects:
        """Inverse of `state`."""
        return cls(float(state["intercept"]), loaded(state["effect"]), loaded(state["seen"]))

    def score(self, sets: GeneSets) -> Doubles:
        """Return the sum of the effects of the genes of each set, and the intercept."""
        added: Doubles = np.add.reduceat(self.effect[sets.genes], sets.offsets[:-1])
        return self.intercept + added


def check_penalty(penalty: float) -> float:
    """Return the penalty, or raise where it is not a positive number."""
    if not (np.isfinite(penalty) and penalty > 0):
        raise InputError(f"the penalty is {penalty}; expected a finite number above 0")
    return float(penalty)


def ridge(part: Part, n_genes: int, penalty: float) -> GeneEffects:
    r"""Return the effects and the intercept of least penalised squares.

    The effects a and the intercept c minimise

    .. math:: \sum_b w_b (y_b - c - \sum_{g \in S_b} a_g)^2 + \lambda \sum_g a_g^2.

    The intercept is not penalised. With X [sets, genes] the gene indicators, W the weights and
    bars for weighted means, a solves the normal equations

    .. math:: (X^T W X - w \bar x \bar x^T + \lambda I) a = X^T W (y - \bar y), \quad w = \sum_b w_b

    and :math:`c = \bar y - \bar x^T a`. The matrix is never formed: conjugate gradients, scaled by
    its diagonal, need one sparse product with X and one with its transpose an iteration.

    Parameters
    ----------
    part
        What to learn from; without genotypes all effects are 0.
    n_genes
        Number of genes.
    penalty
        The penalty λ, in genotypes of weight 1.
    """
    total = float(part.weights.sum())
    if not total:
        return GeneEffects(0.0, np.zeros(n_genes), np.zeros(n_genes, dtype=bool))
    x = part.sets.indicators(n_genes)
    weighted = (x * part.weights[:, None]).T.tocsr()
    count: Doubles = weighted @ np.ones(len(part.sets))
    mean_x, mean_y = count / total, part.mean
    diagonal = count - total * mean_x**2 + penalty

    def times(a: Doubles) -> Doubles:
        product: Doubles = weighted @ (x @ a) - count * (mean_x @ a) + penalty * a
        return product

    shape = (n_genes, n_genes)
    effect, failed = scipy.sparse.linalg.cg(
        scipy.sparse.linalg.LinearOperator(shape, matvec=times, dtype=np.float64),
        weighted @ (part.targets - mean_y),
        rtol=_RELATIVE_RESIDUAL,
        maxiter=10 * n_genes + 100,
        M=scipy.sparse.diags_array(1 / diagonal),
    )
    if failed:
        raise InputError(
            f"the additive effects do not converge with a penalty of {penalty}",
            fix="Take a larger penalty.",
        )
    return GeneEffects(mean_y - float(mean_x @ effect), effect, count > 0)


@dataclass(frozen=True, eq=False)
class CrossFittedEffects:
    """Effects that a genotype of the training part had no share in.

    Parameters
    ----------
    fold
        The fold of each genotype, [sets]. Equal sets share a fold.
    effect
        The effects learned from all folds but one, [folds, genes].
    seen
        Which genes were in those folds, [folds, genes].
    """

    fold: Ints
    effect: Doubles
    seen: Bools

    def of(self, sets: GeneSets) -> Doubles:
        """Return the effect of each gene of each training set, [total]."""
        effects: Doubles = self.effect[self.fold[sets.owner], sets.genes]
        return effects

    def known_of(self, sets: GeneSets) -> Doubles:
        """Return the same, NaN for a gene that was not in those folds, [total]."""
        return np.where(self.seen[self.fold[sets.owner], sets.genes], self.of(sets), np.nan)


def cross_fitted(
    part: Part, n_genes: int, penalty: float, *, folds: int, seed: int
) -> CrossFittedEffects:
    """Return the effects for the training part itself, each fold's learned from the others.

    A gene's effect from the whole part holds a share of every score it was seen with, so a
    regression on it would read back the score it is to learn. Repeats of a set stay together.

    Parameters
    ----------
    part
        The training part.
    n_genes
        Number of genes.
    penalty
        As in `ridge`.
    folds
        Number of folds; never more than there are distinct sets.
    seed
        Of the folds.
    """
    _, distinct = np.unique(part.sets.keys(n_genes), return_inverse=True)
    n_distinct = int(distinct.max()) + 1
    folds = min(folds, n_distinct)
    place: npt.NDArray[np.int64] = np.random.default_rng(seed).permutation(n_distinct)
    fold: Ints = (place % folds)[distinct.ravel()]
    effect = [ridge(part.take(np.flatnonzero(fold != k)), n_genes, penalty) for k in range(folds)]
    return CrossFittedEffects(
        fold, np.stack([e.effect for e in effect]), np.stack([e.seen for e in effect])
    )
