"""How the messages of a gene's relations become one vector."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.models.base import check_heads

COMBINATIONS = ("sum", "mean", "attention", "pairwise")
NARROW = 32  # the hidden width of each pair's MLP and of the scorer


class AttentionCombination(nn.Module):
    """``x = mean_r attention(m + e)_r`` of a gene's messages [r, m, hidden], with a learned e_r."""

    def __init__(self, relations: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        check_heads(heads, hidden)
        self.heads = heads
        self.relation = nn.Parameter(torch.empty(relations, 1, hidden).normal_(std=0.02))
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, messages: Tensor) -> Tensor:
        """Return the vectors [m, hidden] of m genes from their messages [r, m, hidden]."""
        r, m, hidden = messages.shape
        projected = self.query_key_value(messages + self.relation)
        by_head = projected.view(r, m, 3, self.heads, hidden // self.heads)
        attended = functional.scaled_dot_product_attention(*by_head.permute(2, 1, 3, 0, 4))
        # The last layer is linear, so it can be applied to the mean.
        return self.out(attended.mean(2).reshape(m, hidden))  # type: ignore[no-any-return]


class PairwiseCombination(nn.Module):
    r"""A softmax-weighted sum, gene by gene, of one option for each pair of relations.

    Each of the ``r (r + 1) / 2`` unordered pairs of relations with repetition has an option
    ``o_ab = B_ab act(A_ab [m_a ; m_b])`` with a separate MLP, Linear(2 hidden, 32), act,
    Linear(32, hidden); the plain mean is one further option. A scorer Linear(hidden, 32), act,
    Linear(32, 1) is shared by all options, and ``x = norm(sum_o softmax(score)_o o)``.

    For speed, ``A [m_a ; m_b] = A' m_a + A'' m_b`` is computed without concatenation, in one
    batched product that projects each relation for its ``r + 1`` places in pairs. The scorer's
    first layer is applied to B_ab, and the weighted sum is taken before B_ab.
    """

    def __init__(self, relations: int, hidden: int) -> None:
        super().__init__()
        self.pairs = tuple(combinations_with_replacement(range(relations), 2))
        n_pairs = len(self.pairs)
        n_places = relations + 1
        n_in = 2 * hidden
        self.project = nn.Parameter(
            default_uniform(relations, hidden, n_places * NARROW, n_in=n_in),
        )
        self.project_bias = nn.Parameter(default_uniform(n_pairs, 1, NARROW, n_in=n_in))
        self.expand = StackedLinear(n_pairs, NARROW, hidden)
        self.score = nn.Linear(hidden, NARROW)
        self.score_out = nn.Linear(NARROW, 1)
        self.norm = nn.LayerNorm(hidden)
        # The places of relation a: first the pairs with it on the left, then on the right.
        left = [a * n_places + (b - a) for a, b in self.pairs]
        right = [b * n_places + (relations - b + a) for a, b in self.pairs]
        self.places = nn.Buffer(torch.tensor(left + right), persistent=False)

    def forward(self, messages: Tensor) -> Tensor:
        """Return the vectors [m, hidden] of m genes from their messages [r, m, hidden]."""
        m = messages.shape[1]
        n_pairs = len(self.pairs)
        narrow = self._narrow(messages)
        mean = messages.mean(0)
        weights = self._scores(narrow, mean).softmax(0)
        of_pairs = weights[:n_pairs]
        of_mean = weights[n_pairs]
        weighted = (of_pairs.unsqueeze(-1) * narrow).transpose(0, 1).reshape(m, -1)
        total = torch.addmm(
            of_pairs.t() @ self.expand.bias,
            weighted,
            self.expand.weight.flatten(0, 1),
        )
        return self.norm(total + of_mean.unsqueeze(-1) * mean)  # type: ignore[no-any-return]

    def _narrow(self, messages: Tensor) -> Tensor:
        """Return ``act(A_ab [m_a ; m_b])`` of each pair, [n_pairs, m, 32]."""
        r, m, _ = messages.shape
        projected = torch.bmm(messages, self.project).view(r, m, r + 1, NARROW)
        by_place = projected.transpose(1, 2).reshape(r * (r + 1), m, NARROW)
        of_pairs = by_place.index_select(0, self.places).view(2, len(self.pairs), m, NARROW)
        left, right = of_pairs
        return functional.gelu(left + right + self.project_bias)

    def _scores(self, narrow: Tensor, mean: Tensor) -> Tensor:
        """Return the score of each option for each gene, [n_pairs + 1, m], fp32 or better."""
        weight = self.expand.weight @ self.score.weight.t()
        bias = functional.linear(self.expand.bias, self.score.weight, self.score.bias)
        of_pairs = torch.baddbmm(bias.unsqueeze(1), narrow, weight)
        of_mean = self.score(mean).unsqueeze(0)
        inner = functional.gelu(torch.cat([of_pairs, of_mean]))
        scores: Tensor = self.score_out(inner).squeeze(-1)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


class StackedLinear(nn.Module):
    """The weights of k linear layers of one size, initialised like `torch.nn.Linear`."""

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_uniform(k, n_in, n_out, n_in=n_in))
        self.bias = nn.Parameter(default_uniform(k, n_out, n_in=n_in))


def default_uniform(*shape: int, n_in: int) -> Tensor:
    """Return weights drawn as `torch.nn.Linear` with `n_in` inputs does."""
    bound = 1 / math.sqrt(n_in)
    return torch.empty(*shape).uniform_(-bound, bound)
