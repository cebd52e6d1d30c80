"""Integrated gradients: a prediction taken apart into contributions that add up to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deltacell.predict.gated import GatedModel

Doubles = npt.NDArray[np.float64]

TOLERANCE = 0.01
"""How far the sum may be from the difference that it explains, as a share of it."""

MOST = 300
"""Gradients to take at most; where they do not suffice, the residual says so."""

_NODES, _WEIGHTS = (column.tolist() for column in np.polynomial.legendre.leggauss(5))
_FIRST = (0.0, 0.1, 0.5, 1.0)
# Where contributions cancel, so large a share of their sizes is what the tolerance is a share of.
_CANCELLED = 0.02
# Errors of pieces may be so many times the tolerance where they cancel each other.
_HIDDEN = 4


class Contributions(NamedTuple):
    """What each gate adds to a score, from all gates at 0 to all at 1.

    ``score - baseline = values.sum() + residual``.

    Parameters
    ----------
    values
        One a gate, [k].
    score
        With all gates at 1.
    baseline
        With all gates at 0.
    gradients
        How many were taken.
    """

    values: Doubles
    score: float
    baseline: float
    gradients: int

    @property
    def residual(self) -> float:
        """What the contributions leave unexplained."""
        return self.score - self.baseline - float(self.values.sum())

    @property
    def complete(self) -> bool:
        """Whether that is within the tolerance."""
        return abs(self.residual) <= _allowed(self.values, self.score, self.baseline)


def relation_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each relation of a model contributes to the score, see `integrated_gradients`.

    Parameters
    ----------
    model
        Of one genotype.
    most
        Gradients to take at most.
    """
    everyone = torch.ones(model.n_genes, dtype=torch.float64)
    return integrated_gradients(
        lambda gates: model.score(gates, everyone), len(model.relations), most
    )


def gene_contributions(model: GatedModel, most: int = MOST) -> Contributions:
    """Return what each gene of the cell contributes to the score, see `integrated_gradients`.

    Parameters
    ----------
    model
        Of one genotype.
    most
        Gradients to take at most.
    """
    all_relations = torch.ones(len(model.relations), dtype=torch.float64)
    return integrated_gradients(
        lambda gates: model.score(all_relations, gates), model.n_genes, most
    )


def integrated_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], n_gates: int, most: int = MOST
) -> Contributions:
    r"""Return ``c_k = integral over t from 0 to 1 of (df / dg_k)(t, ..., t)``.

    By the fundamental theorem they add up to ``f(1) - f(0)``. That holds on every piece of the way
    too, so each piece is integrated with five nodes of Gauss and Legendre and compared with the
    difference of f over it, and the worst piece is halved until the errors are small.

    Parameters
    ----------
    function
        From gates [k] to a number.
    n_gates
        How many.
    most
        Gradients to take at most.
    """
    path = _Path(function, n_gates)
    pieces = [path.piece(a, b) for a, b in pairwise(_FIRST)]
    while path.gradients + 2 * len(_NODES) <= most and not path.well_covered(pieces):
        worst = max(pieces, key=lambda piece: abs(piece.error))
        middle = (worst.begin + worst.end) / 2
        pieces.remove(worst)
        pieces += [path.piece(worst.begin, middle), path.piece(middle, worst.end)]
    values = np.sum([piece.values for piece in pieces], axis=0)
    return Contributions(values, path.at(1.0), path.at(0.0), path.gradients)


class _Piece(NamedTuple):
    begin: float
    end: float
    values: Doubles
    error: float


class _Path:
    """A function along the way on which all gates are the same."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], n_gates: int) -> None:
        self._function = function
        self._n_gates = n_gates
        self._at: dict[float, float] = {}
        self.gradients = 0

    def at(self, t: float) -> float:
        """Return the function at a place."""
        if t not in self._at:
            with torch.no_grad():
                gates = torch.full((self._n_gates,), t, dtype=torch.float64)
                self._at[t] = float(self._function(gates))
        return self._at[t]

    def piece(self, begin: float, end: float) -> _Piece:
        """Return the integral over a piece, and how far its sum is from the difference."""
        half = (end - begin) / 2
        values = np.zeros(self._n_gates)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            values += half * weight * self._gradient(begin + half * (1 + node))
        error = self.at(end) - self.at(begin) - float(values.sum())
        return _Piece(begin, end, values, error)

    def well_covered(self, pieces: Sequence[_Piece]) -> bool:
        """Whether the errors are small together, and not only because they cancel."""
        values = np.sum([piece.values for piece in pieces], axis=0)
        errors = np.array([piece.error for piece in pieces])
        allowed = _allowed(values, self.at(1.0), self.at(0.0))
        return bool(abs(errors.sum()) <= allowed and np.abs(errors).sum() <= _HIDDEN * allowed)

    def _gradient(self, t: float) -> Doubles:
        gates = torch.full((self._n_gates,), t, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (found,) = torch.autograd.grad(self._function(gates), gates)
        self.gradients += 1
        gradient: Doubles = found.numpy()
        return gradient


def _allowed(values: Doubles, score: float, baseline: float) -> float:
    rounding = 1e-10 * max(abs(score), abs(baseline))
    explained = max(abs(score - baseline), _CANCELLED * float(np.abs(values).sum()))
    return TOLERANCE * explained + rounding
