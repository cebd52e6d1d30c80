"""Contributions of gates to a score, by integrated gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from deltacell.base.arrays import Doubles
from deltacell.models.interface import GatedScore, TargetScale

TOLERANCE = 0.01  # the largest residual, as a share of the sum of absolute contributions
MOST = 300  # gradients per decomposition; the residual shows whether they suffice
_QUADRATURE = np.polynomial.legendre.leggauss(5)
_NODES: list[float] = _QUADRATURE[0].tolist()
_WEIGHTS: list[float] = _QUADRATURE[1].tolist()
_FIRST = (0.0, 0.1, 0.5, 1.0)


def contributions(
    gated: GatedScore,
    n_genes: int,
    scale: TargetScale,
    most: int = MOST,
) -> tuple[Contributions, Contributions]:
    """Return the contributions of relations and of all genes to a score in the screen's unit."""
    relations = torch.ones(len(gated.relations), dtype=torch.float64)
    genes = torch.ones(n_genes, dtype=torch.float64)

    def score_of_relations(gates: torch.Tensor) -> torch.Tensor:
        return scale.undo(gated.score(gates, genes))

    def score_of_genes(gates: torch.Tensor) -> torch.Tensor:
        return scale.undo(gated.score(relations, gates))

    return (
        integrated_gradients(score_of_relations, len(relations), most),
        integrated_gradients(score_of_genes, n_genes, most),
    )


class _Piece(NamedTuple):
    """The integral over a piece of the path."""

    begin: float
    end: float
    values: Doubles  # one per gate
    error: float


class Contributions(NamedTuple):
    """Contributions of gates to a score: ``score - baseline = values.sum() + residual``."""

    values: Doubles  # one per gate
    score: float  # with all gates at 1
    baseline: float  # with all gates at 0

    @property
    def residual(self) -> float:
        """The part of the difference that no gate explains."""
        return self.score - self.baseline - float(self.values.sum())

    @property
    def allowed(self) -> float:
        """The largest residual of a complete explanation, including rounding."""
        rounding = 1e-10 * max(abs(self.score), abs(self.baseline))
        return TOLERANCE * float(np.abs(self.values).sum()) + rounding

    @property
    def complete(self) -> bool:
        """Whether the residual is small."""
        return abs(self.residual) <= self.allowed


def integrated_gradients(
    function: Callable[[torch.Tensor], torch.Tensor],
    n_gates: int,
    most: int = MOST,
) -> Contributions:
    r"""Return ``c_k = integral over t from 0 to 1 of (df / dg_k)(t, ..., t)``.

    They add up to ``f(1) - f(0)``, and so do the integrals over each piece of the path to the
    difference of f over it. Each piece is integrated by Gauss-Legendre quadrature with five nodes,
    and the one with the largest error is halved until the total error is small or ``most``
    gradients have been taken.
    """

    @cache
    def value(t: float) -> float:
        with torch.no_grad():
            return float(function(torch.full((n_gates,), t, dtype=torch.float64)))

    def gradient(t: float) -> Doubles:
        gates = torch.full((n_gates,), t, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (gradient_of_gates,) = torch.autograd.grad(function(gates), gates)
        of_gates: Doubles = gradient_of_gates.numpy()
        return of_gates

    def piece(begin: float, end: float) -> _Piece:
        half = (end - begin) / 2
        values = np.zeros(n_gates)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            values += half * weight * gradient(begin + half * (1 + node))
        error = value(end) - value(begin) - float(values.sum())
        return _Piece(begin, end, values, error)

    pieces = [piece(begin, end) for begin, end in pairwise(_FIRST)]
    n_gradients = len(_NODES) * len(pieces)
    while True:
        total: Doubles = np.sum([part.values for part in pieces], axis=0)
        result = Contributions(total, value(1.0), value(0.0))
        errors = np.abs([part.error for part in pieces])
        n_gradients += 2 * len(_NODES)
        if errors.sum() <= result.allowed or n_gradients > most:
            return result
        worst = pieces.pop(int(errors.argmax()))
        middle = (worst.begin + worst.end) / 2
        pieces += [piece(worst.begin, middle), piece(middle, worst.end)]
