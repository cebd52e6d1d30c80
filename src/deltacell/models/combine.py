"""Combinations: how the messages of all relations to a gene become one vector."""

from __future__ import annotations

from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.models.base import (
    StackedLinear,
    activation_of,
    check_choice,
    check_heads,
    default_uniform,
)

COMBINATIONS = ("sum", "mean", "attention", "pairwise")
"""All of them map messages [r, m, hidden] to vectors [m, hidden], gene by gene."""

NARROW = 32
"""Width between the two layers of each pair's MLP, and of the scorer."""


def combination(name: str, relations: int, hidden: int, activation: str) -> nn.Module:
    """Create one of `COMBINATIONS` for so many relations."""
    check_choice("combination", name, COMBINATIONS)
    if name == "attention":
        return AttentionCombination(relations, hidden)
    if name == "pairwise":
        return PairwiseCombination(relations, hidden, activation)
    return SumCombination() if name == "sum" else MeanCombination()


class SumCombination(nn.Module):
    """``x = sum_r m_r``."""

    def forward(self, messages: Tensor) -> Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        return messages.sum(0)


class MeanCombination(nn.Module):
    """``x = mean_r m_r``."""

    def forward(self, messages: Tensor) -> Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        return messages.mean(0)


class AttentionCombination(nn.Module):
    """``x = mean_r attention(m + e)_r``, with a learned vector e_r per relation (std 0.02).

    Each gene attends among its own r messages.
    """

    def __init__(self, relations: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        check_heads(heads, hidden)
        self.heads = heads
        self.relation = nn.Parameter(torch.empty(relations, 1, hidden).normal_(std=0.02))
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, messages: Tensor) -> Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        r, m, hidden = messages.shape
        projected = self.query_key_value(messages + self.relation)
        query, key, value = projected.view(r, m, 3, self.heads, hidden // self.heads).permute(
            2, 1, 3, 0, 4
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        # The last layer is linear: apply it to the mean instead of to each of the r.
        return self.out(attended.mean(2).reshape(m, hidden))  # type: ignore[no-any-return]


class PairwiseCombination(nn.Module):
    r"""A choice, gene by gene, among what each pair of relations makes of its two messages.

    For each unordered pair of relations with repetition, ``r (r + 1) / 2`` of them, there is an
    option ``o_ab = B_ab act(A_ab [m_a ; m_b])`` with an MLP of its own, Linear(2 hidden, 32), act,
    Linear(32, hidden); the plain mean is one further option. A scorer Linear(hidden, 32), act,
    Linear(32, 1) is shared by all options, and ``x = norm(sum_o softmax(score)_o o)``.

    Nothing is concatenated: ``A [m_a ; m_b] = A' m_a + A'' m_b``, and every relation stands in
    ``r + 1`` places, so that one batched product projects each relation once for all its pairs. Nor
    are the options formed: the scorer's first layer is applied to B_ab instead, and the weighted
    sum is taken before B_ab.
    """

    places: Tensor

    def __init__(self, relations: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.pairs = tuple(combinations_with_replacement(range(relations), 2))
        n_places = relations + 1
        self.project = nn.Parameter(
            default_uniform(relations, hidden, n_places * NARROW, n_in=2 * hidden)
        )
        self.project_bias = nn.Parameter(
            default_uniform(len(self.pairs), 1, NARROW, n_in=2 * hidden)
        )
        self.expand = StackedLinear(len(self.pairs), NARROW, hidden)
        self.score = nn.Linear(hidden, NARROW)
        self.score_out = nn.Linear(NARROW, 1)
        self.norm = nn.LayerNorm(hidden)
        # For relation a, first the pairs in which it is on the left, then those on the right.
        left = [a * n_places + (b - a) for a, b in self.pairs]
        right = [b * n_places + (relations - b + a) for a, b in self.pairs]
        self.register_buffer("places", torch.tensor(left + right), persistent=False)

    def forward(self, messages: Tensor) -> Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        r, m, _ = messages.shape
        n_pairs = len(self.pairs)
        projected = torch.bmm(messages, self.project).view(r, m, r + 1, NARROW)
        by_place = projected.transpose(1, 2).reshape(r * (r + 1), m, NARROW)
        left, right = by_place.index_select(0, self.places).view(2, n_pairs, m, NARROW)
        narrow = self.activation(left + right + self.project_bias)
        mean = messages.mean(0)
        chosen = self._scores(narrow, mean).softmax(0)
        of_pairs, of_mean = chosen[:n_pairs], chosen[n_pairs]
        weighted = (of_pairs.unsqueeze(-1) * narrow).transpose(0, 1).reshape(m, -1)
        total = torch.addmm(
            of_pairs.t() @ self.expand.bias.squeeze(1), weighted, self.expand.weight.flatten(0, 1)
        )
        return self.norm(total + of_mean.unsqueeze(-1) * mean)  # type: ignore[no-any-return]

    def _scores(self, narrow: Tensor, mean: Tensor) -> Tensor:
        """Return the score of each option for each gene, [n_pairs + 1, m], fp32 or better."""
        weight = self.expand.weight @ self.score.weight.t()
        bias = functional.linear(self.expand.bias, self.score.weight, self.score.bias)
        of_pairs = torch.baddbmm(bias, narrow, weight)
        of_mean = self.score(mean).unsqueeze(0)
        found = self.score_out(self.activation(torch.cat([of_pairs, of_mean]))).squeeze(-1)
        return found.to(torch.promote_types(found.dtype, torch.float32))  # type: ignore[no-any-return]
