"""The pool of a cell's genes, and the difference between the wild type's and a mutant's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """The terms of a weighted mean over genes."""

    gate: Tensor  # logarithm of the weight, up to a constant per cell, [m, ...]
    value: Tensor  # [m, ..., hidden]


@dataclass(frozen=True, eq=False)
class WildTerms:
    """The wild type's terms of m genes, which `pool_changes` compares with a mutant's."""

    total: Tensor  # logarithm of the sum of exp(gate) over all genes, [m]
    weight: Tensor  # w_i, [m]
    value: Tensor  # v_i, [m, hidden]
    from_pooled: Tensor  # p - v_i, [m, hidden]

    def double(self) -> WildTerms:
        """Return the terms in float64."""
        return WildTerms(
            self.total.double(),
            self.weight.double(),
            self.value.double(),
            self.from_pooled.double(),
        )


class WildPool(NamedTuple):
    """The pooled wild type."""

    total: Tensor  # logarithm of the sum of exp(gate), float64
    weight: Tensor  # w_i, float64 [n]
    value: Tensor  # v_i, [n, hidden]
    pooled: Tensor  # p, the weighted mean of the values, [hidden]

    def at(self, rows: Tensor) -> WildTerms:
        """Return the terms of m genes."""
        from_pooled = self.pooled - self.value
        return WildTerms(
            self.total.expand(len(rows)),
            self.weight.index_select(0, rows),
            self.value.index_select(0, rows),
            from_pooled.index_select(0, rows),
        )


def wild_pool(terms: Terms) -> WildPool:
    """Return ``p = sum_i w_i v_i`` with w the softmax of the gates."""
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
    change_of_weight = (weight - wild.weight.unsqueeze(1)).to(wild.value.dtype)
    change_of_value = mutants.value - wild.value.unsqueeze(1)
    weight = weight.to(change_of_value.dtype)
    with torch.autocast(gate.device.type, enabled=False):
        by_weight = change_of_weight.t() @ wild.value
        by_value = torch.bmm(weight.t().unsqueeze(1), change_of_value.transpose(0, 1))
    return -(by_weight + by_value.squeeze(1))


def pool_changes(mutants: Terms, living: Tensor, wild: WildTerms) -> tuple[Tensor, Tensor]:
    r"""Return the terms of m changed genes in N [m, hidden] and Q [m], for ``z = N / (1 + Q)``.

    With ``w'_i, v'_i`` the terms of a mutant, scaled like the wild type's,
    ``N = sum_i (w_i (v_i - p) - w'_i (v'_i - p))`` and ``Q = sum_i (w'_i - w_i)``. Unchanged genes
    add nothing to either sum, and deleted ones have ``w'_i = 0``. The rounding error grows with
    ``1 / (1 + Q)``, which is about 1 unless the changed genes have nearly all the weight;
    `pool_difference` has no such limit.
    """
    weight = (mutants.gate.double() - wild.total).exp() * living
    change = weight - wild.weight
    by_weight = change.to(wild.value.dtype).unsqueeze(1) * wild.from_pooled
    by_value = weight.to(wild.value.dtype).unsqueeze(1) * (wild.value - mutants.value)
    return by_weight + by_value, change
