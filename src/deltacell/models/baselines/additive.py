"""Baselines in closed form: the mean, additive effects of genes, and the mean of a query pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import scipy.sparse.linalg

from deltacell.arrays import Bools, Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.base import check_choice, check_range
from deltacell.models.baselines.baseline import FitData, FittedPredictor, Part, State, loaded, saved
from deltacell.models.baselines.gene_sets import GeneOrder, GenePairs, GeneSets, look_up

_RELATIVE_RESIDUAL = 1e-12

Toward = Literal["additive", "mean"]


class GlobalMean(FittedPredictor):
    r"""The mean of the training scores.

    .. math:: \hat y(S) = \sum_b w_b y_b / \sum_b w_b
    """

    def _fit(self, data: FitData) -> None:
        self._mean = data.training.mean

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return np.full(len(sets), self._mean)

    def _state(self) -> State:
        return {"mean": self._mean}

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._mean = float(state["mean"])


@dataclass(eq=False)
class Additive(FittedPredictor):
    r"""Ridge regression on gene indicators.

    .. math:: \hat y(S) = c + \sum_{g \in S} a_g

    with c and a that minimise
    :math:`\sum_b w_b (y_b - \hat y(S_b))^2 + \lambda \sum_g a_g^2`. A gene that was never seen adds
    nothing.

    Parameters
    ----------
    penalty
        The penalty λ: the effect of a gene seen in that many genotypes is about halved.
    """

    penalty: float = 3.0

    def __post_init__(self) -> None:
        check_range("(0, inf)", penalty=self.penalty)

    @property
    def intercept(self) -> float:
        """The score c of genes without effect."""
        return self._learned.intercept

    def effects(self, cell: Cell) -> Doubles:
        """Return the effect a of every gene of the cell, [genes]."""
        order = self._order_for(cell)
        return self._learned.effect[order.place]

    def _fit(self, data: FitData) -> None:
        self._learned: GeneEffects = ridge(data.training, len(data.order), self.penalty)

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return self._learned.score(sets)

    def _state(self) -> State:
        return self._learned.state()

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._learned = GeneEffects.from_state(state)


@dataclass(eq=False)
class QueryPairMean(FittedPredictor):
    r"""The mean of the training scores of a genotype's gene pairs, shrunk.

    .. math::

        \hat y(S) = \frac{k \, y_0(S) + \sum_{p \subset S} \sum_{b : p \subset S_b} w_b y_b}
                         {k + \sum_{p \subset S} \sum_{b : p \subset S_b} w_b}

    where p runs over the unordered pairs of genes of S. Genotypes carry no roles, so all pairs
    count; in a trigenic screen the query pair was measured with every array gene and the other two
    pairs a few times, so the sum is the query pair's. If no pair was seen, and for a genotype of
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

    shrinkage: float = 3.0
    toward: Toward = "additive"
    penalty: float = 3.0

    def __post_init__(self) -> None:
        check_range("(0, inf)", shrinkage=self.shrinkage, penalty=self.penalty)
        check_choice("prior to shrink toward", self.toward, get_args(Toward))

    def _fit(self, data: FitData) -> None:
        training, n = data.training, len(data.order)
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
        at, seen = look_up(self._seen, self._keys(pairs))
        owner, at = np.repeat(np.arange(len(sets)), np.diff(pairs.offsets))[seen], at[seen]
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
        self._prior = GeneEffects.from_state(state)
        self._seen = loaded(state["pairs"])
        self._weight, self._sum = loaded(state["weight"]), loaded(state["sum"])

    def _keys(self, pairs: GenePairs) -> Ints:
        return pairs.first * self._n_genes + pairs.second


@dataclass(frozen=True, eq=False)
class GeneEffects:
    r"""What each gene adds to a score, :math:`\hat y(S) = c + \sum_{g \in S} a_g`."""

    intercept: float
    effect: Doubles  # 0 for a gene that was never seen, [genes]
    seen: Bools  # which genes were in a genotype of positive weight, [genes]

    @property
    def known(self) -> Doubles:
        """The effect of each gene, NaN for a gene that was never seen, [genes]."""
        return np.where(self.seen, self.effect, np.nan)

    def score(self, sets: GeneSets) -> Doubles:
        """Return the sum of the effects of the genes of each set, and the intercept."""
        added: Doubles = np.add.reduceat(self.effect[sets.genes], sets.offsets[:-1])
        return self.intercept + added

    def state(self) -> State:
        """Return it as a part of a predictor's state."""
        return {"intercept": self.intercept, "effect": saved(self.effect), "seen": saved(self.seen)}

    @classmethod
    def from_state(cls, state: State) -> GeneEffects:
        """Inverse of `state`."""
        return cls(float(state["intercept"]), loaded(state["effect"]), loaded(state["seen"]))


def ridge(part: Part, n_genes: int, penalty: float) -> GeneEffects:
    r"""Return the effects a and the intercept c of least penalised squares.

    .. math:: \sum_b w_b (y_b - c - \sum_{g \in S_b} a_g)^2 + \lambda \sum_g a_g^2.

    The intercept is not penalised. With X [sets, genes] the gene indicators, W the weights and
    bars for weighted means, a solves the normal equations

    .. math:: (X^T W X - w \bar x \bar x^T + \lambda I) a = X^T W (y - \bar y), \quad w = \sum_b w_b

    and :math:`c = \bar y - \bar x^T a`. The matrix is never formed: conjugate gradients, scaled by
    its diagonal, need one sparse product with X and one with its transpose per iteration. Without
    genotypes all effects are 0.
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
            code="no-convergence",
            fix="Choose a larger penalty.",
        )
    return GeneEffects(mean_y - float(mean_x @ effect), effect, count > 0)


def cross_fitted_effects(
    part: Part, n_genes: int, penalty: float, *, folds: int, seed: int
) -> Doubles:
    """Return the effect of each gene of each training set, learned from the other folds, [total].

    An effect learned from the whole part holds a share of every score it was seen with, so a
    regression on it would read back the score it is to learn. Repeats of a set share a fold. A gene
    that is in no other fold is NaN.
    """
    number, n_distinct = part.sets.distinct(n_genes)
    folds = min(folds, n_distinct)
    fold = (np.random.default_rng(seed).permutation(n_distinct) % folds)[number]
    known = [
        ridge(part.take(np.flatnonzero(fold != k)), n_genes, penalty).known for k in range(folds)
    ]
    effects: Doubles = np.stack(known)[fold[part.sets.owner], part.sets.genes]
    return effects
