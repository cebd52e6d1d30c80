"""What single genes explain of scores: the expectation that an interaction is measured against."""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.optimize
import scipy.sparse as sp

from deltacell.base.arrays import Doubles
from deltacell.base.errors import InputError
from deltacell.models.baselines.additive import GeneEffects, ridge
from deltacell.models.fitted.gene_sets import GeneSets
from deltacell.models.fitted.predictor import Part

Expectation = Literal["additive", "multiplicative"]

PENALTY = 0.3
"""So small that the effects of genes with a few genotypes are not left in the residuals.

The effect of a gene in n genotypes is shrunk by n / (n + 0.3).
"""

MOST_NEGATIVE = 0.05  # the largest share of negative scores that effects can be factors of
_MOST_STEPS = 200


def expected_scores(
    kind: Expectation,
    training: Part,
    n_genes: int,
    sets: GeneSets,
    *,
    penalty: float = PENALTY,
) -> Doubles:
    r"""Return the score that single effects lead to expect of each set, [sets].

    ``additive`` effects are terms, :math:`c + \sum_{g \in S} a_g`, by ridge regression;
    ``multiplicative`` ones are factors, :math:`c \prod_{g \in S} f_g`. They are learned from the
    training part alone. A gene that is in none of its sets has no effect.
    """
    if kind == "additive":
        return ridge(training, n_genes, penalty).score(sets)
    return multiplicative_effects(training, n_genes, penalty).expected(sets)


class MultiplicativeEffects(GeneEffects):
    r"""The parameters of :math:`\hat y(S) = \exp(c + \sum_{g \in S} a_g)`."""

    def expected(self, sets: GeneSets) -> Doubles:
        """Return the expected score of each set, [sets]."""
        product: Doubles = np.exp(self.score(sets))
        return product


def multiplicative_effects(part: Part, n_genes: int, penalty: float) -> MultiplicativeEffects:
    r"""Return the effects a and the intercept c that minimise the penalised deviance.

    .. math:: \sum_b (\hat y_b - y_b \log \hat y_b) + \frac{\lambda}{2} \sum_g a_g^2,
              \quad \hat y_b = \exp(c + \sum_{g \in S_b} a_g).

    This is convex and its expectation is right for scores of any distribution, and unlike a
    regression on logarithms it takes a fitness of 0. Scores are divided by their mean, so that the
    penalty means the same on every scale.
    """
    is_negative = part.targets < 0
    mean = float(part.targets.mean()) if len(part.targets) else 0.0
    if mean <= 0 or is_negative.mean() > MOST_NEGATIVE:
        what = f"effects cannot be factors of these scores: {int(is_negative.sum()):,} of "
        what += f"{len(is_negative):,} are negative, and their mean is {mean:.3g}"
        fix = "data.residual=multiplicative is for fitness; use data.residual=additive."
        raise InputError(what, code="negative-scores", fix=fix)
    genes = part.sets.genes
    ones = np.ones(len(genes))
    x = sp.csr_array((ones, genes, part.sets.offsets), shape=(len(part.sets), n_genes))
    targets = part.targets / mean
    effects = _minimised(x, targets, penalty)
    intercept = float(effects[0]) + float(np.log(mean))
    seen = np.bincount(genes, minlength=n_genes) > 0
    return MultiplicativeEffects(intercept, effects[1:], seen)


def _minimised(x: sp.csr_array, targets: Doubles, penalty: float) -> Doubles:
    """Return the intercept and the effects, [1 + genes], of sets x [sets, genes]."""
    transposed = x.T.tocsr()

    def expected(parameters: Doubles) -> Doubles:
        with np.errstate(over="ignore"):
            values: Doubles = np.exp(parameters[0] + x @ parameters[1:])
        return values

    def deviance(parameters: Doubles) -> float:
        logs = parameters[0] + x @ parameters[1:]
        loss = float((expected(parameters) - targets * logs).sum())
        return loss + penalty / 2 * float(parameters[1:] @ parameters[1:])

    def gradient(parameters: Doubles) -> Doubles:
        errors = expected(parameters) - targets
        return np.concatenate([[errors.sum()], transposed @ errors + penalty * parameters[1:]])

    def curvature(parameters: Doubles, direction: Doubles) -> Doubles:
        weighted = expected(parameters) * (direction[0] + x @ direction[1:])
        of_genes = transposed @ weighted + penalty * direction[1:]
        return np.concatenate([[weighted.sum()], of_genes])

    found = scipy.optimize.minimize(
        deviance,
        np.zeros(1 + x.shape[1]),
        jac=gradient,
        hessp=curvature,
        method="trust-ncg",
        options={"gtol": 1e-9 * max(1, len(targets)), "maxiter": _MOST_STEPS},
    )
    solution: Doubles = found.x
    return solution
