r"""How far DANGO's score can be from one that takes attention as uniform, proved from norms.

Let ``u_i`` be a gene's last vector under uniform attention less its static one, see
`UniformTables`, and ``kappa_i`` what the attention of the one layer that is kept adds to it. The
model's own is ``u_i + eta_i``, and the surrogate's ``u_i + kappa_i``. From layer to layer, with
``a`` the attention weights and n the number of others,

    eta'_i = eta_i + beta sum_h (sum_j a^h_ij W^h eta_j + sum_j (a^h_ij - 1/n) W^h p_j).

The second sum is at most the distance in total variation of ``a^h_i`` from uniform times the
largest ``|W^h (p_j - p_k)|``. Logits that differ by r at most give a distance of
``tanh(r / 2) / 2`` for two others and less than ``tanh(r / 4)`` for more. The kept layer's
own term of it is in kappa; what is left there is the change of its weights, at most a quarter of
the change of their logits' difference. At the end, with ``v = u + kappa`` and
``e = eta - kappa``, ``|w . ((v + e)^2 - v^2)| <= 2 |w v| |e| + max |w| |e|^2``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.models.hyper_sagnn import PaddedSets
from deltacell.predict.dango_tables import (
    LayerNorms,
    LayerWeights,
    UniformTables,
    layer_weights,
    layers_of,
)
from deltacell.predict.run_scorer import Doubles

DOUBLE, SINGLE = 1e-9, 1e-4
"""Share of their length that vectors may lose by rounding: 1,000 operations' worth, and more."""

N_LAST = 4
"""Norms of a gene's last vectors: of y and z weighted, of what y is a difference of, and of z."""


class AttentionBound:
    """Bounds of ``|score - surrogate|`` before the scale of the targets, over blocks of sets.

    Parameters
    ----------
    sets
        The weights, in double precision.
    tables
        Of the size of the sets.
    kept
        The layer whose attention the surrogate has, by ``p`` alone; None where it has none. Of
        sets of three genes.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, kept: int | None = None) -> None:
        self._size = tables.size
        self._kept = kept
        weight = sets.score.weight[0]
        self._most = float(weight.abs().max())
        self._weights = [layer_weights(layer) for layer in layers_of(sets)]
        before = tables.static.norm(dim=-1) + (tables.y + tables.static).norm(dim=-1)
        last = [
            *((part * weight).norm(dim=-1) for part in (tables.y, tables.z)),
            before,
            tables.z.norm(dim=-1),
        ]
        norms = [norm for of_layer in tables.norms for norm in of_layer]
        self._of_gene = torch.cat([torch.stack(last, 1), *norms], 1).cpu().numpy()

    def of(self, axes: Sequence[Ints]) -> float:
        """Return a bound of ``|score - surrogate|`` for every set of a block.

        Parameters
        ----------
        axes
            Of the block.
        """
        largest = self._largest(axes)
        way = self._way(largest)
        weighted = self._last(largest, 0) + self._most * way.kept
        bound = 2 * weighted * way.error + self._most * way.error**2
        return float(bound.mean()) + self._rounding(largest, way, DOUBLE)

    def rounding(self, axes: Sequence[Ints]) -> float:
        """Return what single precision may take from the score of any set of a block.

        Parameters
        ----------
        axes
            Of the block.
        """
        largest = self._largest(axes)
        return self._rounding(largest, self._way(largest), SINGLE)

    def _largest(self, axes: Sequence[Ints]) -> Doubles:
        return np.stack([self._of_gene[axis].max(0) for axis in axes])

    def _way(self, largest: Doubles) -> _Way:
        way = _Way.beginning(self._size)
        begin = N_LAST
        for i, weights in enumerate(self._weights):
            end = begin + len(LayerNorms._fields) * weights.heads
            norms = largest[:, begin:end].reshape(self._size, -1, weights.heads)
            way = way.through(weights, norms, kept=i == self._kept)
            begin = end
        return way

    def _last(self, largest: Doubles, y: int) -> Doubles:
        """Return bounds of ``|y_i + sum of z_j|``, by axis."""
        last: Doubles = largest[:, y] + _sum_of_others(largest[:, y + 1])
        return last

    def _rounding(self, largest: Doubles, way: _Way, share: float) -> float:
        """Return what a score loses where vectors lose a share of their length."""
        away = way.kept + way.eta
        lost = share * (self._last(largest, 2) + away)
        weighted = self._last(largest, 0) + self._most * away
        return float((weighted * lost + self._most * lost**2).mean())


class _Way(NamedTuple):
    """How far vectors may be from those under uniform attention, one number an axis.

    Parameters
    ----------
    eta
        ``|eta|``.
    error
        ``|eta - kappa|``.
    kept
        ``|kappa|``.
    """

    eta: Doubles
    error: Doubles
    kept: Doubles

    @classmethod
    def beginning(cls, size: int) -> _Way:
        return cls(*np.zeros((3, size)))

    def through(self, weights: LayerWeights, norms: Doubles, *, kept: bool) -> _Way:
        """Return the same after a layer, whose norms by axis are [size, 5, heads]."""
        logits, query, query_of_others, key, out = norms.transpose(1, 0, 2)
        others = len(logits) - 1
        if not others:
            return self
        eta_of_others = _largest_other(self.eta)[:, None]
        keys_apart = _two_largest_others(key)
        moved_keys = 2 * weights.key * eta_of_others
        moved_queries = query_of_others.sum(0) + weights.query * self.eta[:, None]
        moved = moved_queries * (keys_apart + moved_keys) + query * moved_keys
        moved /= math.sqrt(weights.width)
        outs_apart = weights.beta * _two_largest_others(out)
        carried = weights.beta * weights.out.sum() * eta_of_others[:, 0]
        uneven = carried + (_from_uniform(logits + moved, others) * outs_apart).sum(1)
        if not kept:
            return _Way(self.eta + uneven, self.error + uneven, self.kept)
        changed = carried + (np.minimum(moved / 4, 1) * outs_apart).sum(1)
        added = (_from_uniform(logits, others) * outs_apart).sum(1)
        return _Way(self.eta + uneven, self.error + changed, self.kept + added)


def _from_uniform(logits: Doubles, others: int) -> Doubles:
    """Return how far in total variation attention may be from uniform, by its logits' range."""
    if others == 1:
        return np.zeros_like(logits)
    away: Doubles = np.tanh(logits / 2) / 2 if others == 2 else np.tanh(logits / 4)
    return away


def _sum_of_others(of_axis: Doubles) -> Doubles:
    rest: Doubles = of_axis.sum(0) - of_axis
    return rest


def _largest_other(of_axis: Doubles) -> Doubles:
    largest: Doubles = of_axis[_others(len(of_axis))].max(1)
    return largest


def _two_largest_others(of_axis: Doubles) -> Doubles:
    others = of_axis[_others(len(of_axis))]
    if others.shape[1] > 2:
        others = np.sort(others, 1)[:, -2:]
    total: Doubles = others.sum(1)
    return total


@cache
def _others(size: int) -> Ints:
    """Return the axes beside each axis, [size, size - 1]."""
    return np.array([[j for j in range(size) if j != i] for i in range(size)])
