r"""The difference between the pooled wild type and a pooled mutant, formed gene by gene.

A cell is pooled by a softmax over its living genes, ``p = sum_i w_i v_i`` with
``w_i = e_i / E``, ``e_i = exp(gate_i)``, ``E = sum_i e_i``. The difference ``z = p - p'`` is a
tiny difference of large sums and would drown in their rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import torch

from deltacell.propagate.hop import Rows


class Terms(NamedTuple):
    """What each gene brings to the pool.

    Parameters
    ----------
    gate
        Logarithm of its weight, up to a constant of the cell, [m, ...].
    value
        What is averaged, [m, ..., hidden].
    """

    gate: torch.Tensor
    value: torch.Tensor


class Readout(Protocol):
    """What is read from the genes of a cell, row by row, to be pooled."""

    def terms(self, vectors: torch.Tensor, rows: Rows) -> Terms:
        """Return the terms of genes with the given vectors [m, ..., hidden], in fp32 or better."""

    def parameters(self) -> Iterable[torch.Tensor]:
        """Return all tensors that `terms` reads and that want a gradient."""

    def in_float64(self) -> Callable[[torch.Tensor, Rows], Terms]:
        """Return `terms` with its parameters in float64, which pass their gradients on."""


class WildPool(NamedTuple):
    """The pooled wild type.

    Parameters
    ----------
    gate, weight
        Of each gene, float64 [n].
    value
        Of each gene, [n, hidden].
    pooled
        Their weighted mean, [hidden].
    """

    gate: torch.Tensor
    weight: torch.Tensor
    value: torch.Tensor
    pooled: torch.Tensor


def wild_pool(terms: Terms) -> WildPool:
    """Pool the wild type from the terms of all its genes, gate [n] and value [n, hidden]."""
    gate = terms.gate.double()
    weight = gate.softmax(0)
    with torch.autocast(gate.device.type, enabled=False):
        pooled = _cast(weight, terms.value) @ terms.value
    return WildPool(gate, weight, terms.value, pooled)


def pool_difference(wild: WildPool, mutants: Terms, living: torch.Tensor) -> torch.Tensor:
    r"""Return z of t mutants from the terms of all genes.

    ``z = sum_i (w_i v_i - w'_i v'_i) = -sum_i ((w'_i - w_i) v_i + w'_i (v'_i - v_i))``,
    where deleted genes have ``w'_i = 0``. The weights and their differences are float64, one number
    a gene; no product is larger than the difference it stands for. Each cell's weights have a
    stabiliser of their own, so that no gate is too large.

    Parameters
    ----------
    wild
        The pooled wild type.
    mutants
        Gate [n, t] and value [n, t, hidden]; those of deleted genes are not read.
    living
        Bool [n, t].

    Returns
    -------
    torch.Tensor
        [t, hidden]. A mutant without a living gene has an empty pool, 0.
    """
    gate = mutants.gate.double()
    # Not -inf: without any living gene the weights must stay numbers.
    lowest = torch.finfo(gate.dtype).min
    weight = gate.masked_fill(~living, lowest).softmax(0).masked_fill(~living, 0)
    change = _cast(weight - wild.weight.unsqueeze(1), wild.value)
    moved = mutants.value - wild.value.unsqueeze(1)
    with torch.autocast(gate.device.type, enabled=False):
        by_weight = change.t() @ wild.value
        by_value = torch.bmm(_cast(weight, moved).t().unsqueeze(1), moved.transpose(0, 1))
    return -(by_weight + by_value.squeeze(1))


def changed_pool_difference(
    wild: WildPool,
    mutants: Terms,
    living: torch.Tensor,
    rows: torch.Tensor,
    owner: torch.Tensor,
    n_mutants: int,
) -> torch.Tensor:
    r"""Return z of mutants from the terms of those genes alone that are changed or deleted.

    With ``e`` and ``E`` as above, all with one stabiliser per mutant,
    ``z = (p dE - dV) / E'``, where ``dE = sum_i (e'_i - e_i)``,
    ``dV = sum_i (e'_i v'_i - e_i v_i)`` and ``E' = E + dE``; genes that did not change add nothing
    to either sum, and deleted genes have ``e'_i = 0``. Rounding grows with ``E / E'``, which is
    about 1 unless a handful of genes hold nearly all the weight; `pool_difference` has no such
    limit.

    Parameters
    ----------
    wild
        The pooled wild type.
    mutants
        Gate [m] and value [m, hidden] of the changed genes of all mutants.
    living
        Which of the m are not deleted, bool [m].
    rows, owner
        The gene of each of the m, and its mutant, int64 [m].
    n_mutants
        How many mutants there are.

    Returns
    -------
    torch.Tensor
        [n_mutants, hidden]. Every mutant must have a living gene.
    """
    lowest = torch.finfo(wild.gate.dtype).min
    gate = mutants.gate.double().masked_fill(~living, lowest)
    # The largest gate of both cells, so that nothing overflows.
    top = wild.gate.detach().max()
    peak = top.expand(n_mutants).scatter_reduce(0, owner, gate.detach(), "amax")
    before = (wild.gate[rows] - peak[owner]).exp()
    after = (gate - peak[owner]).exp().masked_fill(~living, 0)
    nothing = gate.new_zeros(n_mutants)
    gained = nothing.index_add(0, owner, after - before)
    total = (wild.gate.logsumexp(0) - peak).exp() + gained
    old = wild.value[rows]
    by_weight = _cast((after - before) / total[owner], old).unsqueeze(1) * old
    by_value = _cast(after / total[owner], old).unsqueeze(1) * (mutants.value - old)
    sums = old.new_zeros(n_mutants, old.shape[1]).index_add(0, owner, by_weight + by_value)
    return _cast(gained / total, sums).unsqueeze(1) * wild.pooled - sums


def _cast(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return weight.to(like.dtype)
