"""The pool of a cell's genes, and the difference between the wild type's and a mutant's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """The terms of a weighted mean over genes."""

    gate: Tensor  # logarithm of the weight, up to a constant per cell, [m, ...]
    value: Tensor  # [m, ..., hidden]


class WildPool(NamedTuple):
    """The pooled wild type."""

    total: Tensor  # logarithm of the sum of exp(gate), float64
    weight: Tensor  # float64 [n]
    value: Tensor  # [n, hidden]
    pooled: Tensor  # the weighted mean of the values, [hidden]

    def at(self, rows: Tensor) -> list[Tensor]:
        """Return the arguments of `pool_changes` for m genes: [m], [m], twice [m, hidden]."""
        parts = self.weight, self.value, self.pooled - self.value
        return [self.total.expand(len(rows)), *(x.index_select(0, rows) for x in parts)]


def wild_pool(terms: Terms) -> WildPool:
    gate = terms.gate.double()
    weight = gate.softmax(0)
    with torch.autocast(gate.device.type, enabled=False):
        pooled = weight.to(terms.value.dtype) @ terms.value
    return WildPool(gate.logsumexp(0), weight, terms.value, pooled)


def pool_difference(wild: WildPool, mutants: Terms, living: Tensor) -> Tensor:
    r"""Return z [t, hidden] of t mutants from the terms of all genes.

    ``z = sum_i (w_i v_i - w'_i v'_i) = -sum_i ((w'_i - w_i) v_i + w'_i (v'_i - v_i))``,
    where deleted genes have ``w'_i = 0``. The softmax of each cell is stabilised separately, so no
    gate is too large. The terms are [n, t] and [n, t, hidden], `living` is bool [n, t]; the terms
    of deleted genes are ignored. The pool of a mutant without a living gene is 0.
    """
    gate = mutants.gate.double()
    # -inf would give NaN for a mutant without a living gene.
    lowest = torch.finfo(gate.dtype).min
    weight = gate.masked_fill(~living, lowest).softmax(0).masked_fill(~living, 0)
    change = (weight - wild.weight.unsqueeze(1)).to(wild.value.dtype)
    moved = mutants.value - wild.value.unsqueeze(1)
    with torch.autocast(gate.device.type, enabled=False):
        by_weight = change.t() @ wild.value
        by_value = torch.bmm(weight.to(moved.dtype).t().unsqueeze(1), moved.transpose(0, 1))
    return -(by_weight + by_value.squeeze(1))


def pool_changes(
    mutants: Terms,
    living: Tensor,
    total: Tensor,
    weight: Tensor,
    value: Tensor,
    apart: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""Return the terms of m changed genes in N [m, hidden] and D [m], for ``z = N / (1 + D)``.

    With ``w'_i, v'_i`` the terms of a mutant, scaled like the wild type's,
    ``N = sum_i (w_i (v_i - p) - w'_i (v'_i - p))`` and ``D = sum_i (w'_i - w_i)``. Unchanged genes
    add nothing to either sum, and deleted ones have ``w'_i = 0``. The rounding error grows with
    ``1 / (1 + D)``, which is about 1 unless the changed genes have nearly all the weight;
    `pool_difference` has no such limit. `WildPool.at` gives the wild type's part.
    """
    new = (mutants.gate.double() - total).exp() * living
    change = new - weight
    by_weight = change.to(value.dtype).unsqueeze(1) * apart
    by_value = new.to(value.dtype).unsqueeze(1) * (value - mutants.value)
    return by_weight + by_value, change
