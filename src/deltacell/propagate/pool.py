"""A cell's genes pooled, and how the pool of a mutant differs from that of the wild type."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """What each gene brings to the pool."""

    gate: Tensor  # logarithm of its weight, up to a constant of the cell, [m, ...]
    value: Tensor  # what is averaged, [m, ..., hidden]


class WildPool(NamedTuple):
    """The pooled wild type."""

    total: Tensor  # logarithm of the sum of exp(gate), float64
    weight: Tensor  # of each gene, float64 [n]
    value: Tensor  # of each gene, [n, hidden]
    pooled: Tensor  # their weighted mean, [hidden]

    def at(self, rows: Tensor) -> list[Tensor]:
        """Return what `pool_changes` reads of m genes: [m], [m], [m, hidden] and [m, hidden]."""
        parts = self.weight, self.value, self.pooled - self.value
        return [self.total.expand(len(rows)), *(x.index_select(0, rows) for x in parts)]


def wild_pool(terms: Terms) -> WildPool:
    """Pool the wild type from the terms of all its genes, gate [n] and value [n, hidden]."""
    gate = terms.gate.double()
    weight = gate.softmax(0)
    with torch.autocast(gate.device.type, enabled=False):
        pooled = weight.to(terms.value.dtype) @ terms.value
    return WildPool(gate.logsumexp(0), weight, terms.value, pooled)


def pool_difference(wild: WildPool, mutants: Terms, living: Tensor) -> Tensor:
    r"""Return z [t, hidden] of t mutants from the terms of all genes.

    ``z = sum_i (w_i v_i - w'_i v'_i) = -sum_i ((w'_i - w_i) v_i + w'_i (v'_i - v_i))``,
    where deleted genes have ``w'_i = 0``. Each cell's weights have a stabiliser of their own, so
    that no gate is too large. The terms are [n, t] and [n, t, hidden], `living` is bool [n, t];
    those of deleted genes are not read. A mutant without a living gene has an empty pool, 0.
    """
    gate = mutants.gate.double()
    # Not -inf: without any living gene the weights must stay numbers.
    lowest = torch.finfo(gate.dtype).min
    weight = gate.masked_fill(~living, lowest).softmax(0).masked_fill(~living, 0)
    change = (weight - wild.weight.unsqueeze(1)).to(wild.value.dtype)
    moved = mutants.value - wild.value.unsqueeze(1)
    with torch.autocast(gate.device.type, enabled=False):
        by_weight = change.t() @ wild.value
        by_value = torch.bmm(weight.to(moved.dtype).t().unsqueeze(1), moved.transpose(0, 1))
    return -(by_weight + by_value.squeeze(1))


def pool_changes(
    mutants: Terms, living: Tensor, total: Tensor, weight: Tensor, value: Tensor, apart: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return what m changed genes add to N [m, hidden] and to D [m], in ``z = N / (1 + D)``.

    With ``w'_i, v'_i`` for a mutant's terms, scaled as the wild type's are,
    ``N = sum_i (w_i (v_i - p) - w'_i (v'_i - p))`` and ``D = sum_i (w'_i - w_i)``. Genes that did
    not change add nothing to either sum, and deleted ones have ``w'_i = 0``. Rounding grows with
    ``1 / (1 + D)``, which is about 1 unless the changed genes hold nearly all the weight;
    `pool_difference` has no such limit. The wild type's part is that of `WildPool.at`.
    """
    new = (mutants.gate.double() - total).exp() * living
    change = new - weight
    by_weight = change.to(value.dtype).unsqueeze(1) * apart
    by_value = new.to(value.dtype).unsqueeze(1) * (value - mutants.value)
    return by_weight + by_value, change
