"""GIN, the graph isomorphism operator, on all relations at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from deltacell.models.activation import activation_of
from deltacell.models.stacked_linear import StackedLinear


class GIN(nn.Module):
    """What each of r relations tells each gene.

    ``m_r = act(norm(MLP_r((1 + eps_r) x + a_r)))``, where a_r is what the gene received over the
    relation, eps_r is learned from 0, the MLP has activations between its linear layers, and the
    norm is over the numbers of one gene. Each relation has weights of its own; the linear layers of
    all relations are one batched product.

    Parameters
    ----------
    relations
        How many.
    hidden
        Width of a vector.
    linears
        Linear layers of the MLP.
    activation
        One of `ACTIVATIONS`.
    """

    def __init__(self, relations: int, hidden: int, linears: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.eps = nn.Parameter(torch.zeros(relations))
        self.linears = nn.ModuleList(
            StackedLinear(relations, hidden, hidden) for _ in range(linears)
        )
        self.norm_weight = nn.Parameter(torch.ones(relations, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(relations, 1, hidden))

    def forward(self, x: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        """Return the messages [r, m, hidden], in fp32 or better.

        Parameters
        ----------
        x
            The genes' vectors, [m, hidden].
        received
            Over each relation, [r, m, hidden].
        """
        h = torch.addcmul(received, (1 + self.eps)[:, None, None], x)
        h = self.linears[0](h)
        for linear in self.linears[1:]:
            h = linear(self.activation(h))
        h = h.to(torch.promote_types(h.dtype, torch.float32))
        h = functional.layer_norm(h, h.shape[-1:])
        return self.activation(torch.addcmul(self.norm_bias, h, self.norm_weight))

    def of_relations(self) -> list[tuple[torch.Tensor, ...]]:
        """Return the parameters of each relation, as views that pass gradients on."""
        stacked = [self.eps, self.norm_weight.squeeze(1), self.norm_bias.squeeze(1)]
        for linear in cast(Iterable[StackedLinear], self.linears):
            stacked += [linear.weight, linear.bias.squeeze(1)]
        return list(zip(*(p.unbind(0) for p in stacked), strict=True))
