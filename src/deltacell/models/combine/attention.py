"""Combination of relations by attention among them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from deltacell.errors import InputError


class AttentionCombination(nn.Module):
    """The mean over relations of self-attention among a gene's messages.

    ``x = mean_r attention(m + e)_r``, with a learned vector e_r per relation (std 0.02); each gene
    attends among its own r messages.

    Parameters
    ----------
    relations
        How many.
    hidden
        Width of a vector.
    heads
        Attention heads; they divide the width.
    """

    def __init__(self, relations: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        if heads < 1 or hidden % heads:
            raise InputError(
                f"hidden is {hidden}, which the {heads} heads of the combination 'attention' do "
                "not divide evenly",
                fix=f"Take a multiple of {heads}.",
            )
        self.heads = heads
        self.relation = nn.Parameter(torch.empty(relations, 1, hidden).normal_(std=0.02))
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, messages: torch.Tensor) -> torch.Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        r, m, hidden = messages.shape
        both = self.query_key_value(messages + self.relation)
        query, key, value = both.view(r, m, 3, self.heads, hidden // self.heads).permute(
            2, 1, 3, 0, 4
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        # The last layer is linear: of the mean, instead of the mean of r.
        return self.out(attended.mean(2).reshape(m, hidden))  # type: ignore[no-any-return]
