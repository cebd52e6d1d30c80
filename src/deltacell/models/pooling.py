"""The pool of a cell: a weighted mean over its living genes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call

from deltacell.models.activation import activation_of
from deltacell.models.ranges import named_range
from deltacell.propagate import Terms
from deltacell.propagate.hop import Rows


class Pooling(nn.Module):
    """``p = sum_i w_i v_i`` over living genes, w the softmax of gate(x_i), v_i = act(Linear(x_i)).

    The gate is Linear(hidden, hidden / 2), act, Linear(hidden / 2, 1). Gates and values are
    computed in fp32 or better whatever the autocast, for what matters of them is a tiny difference.

    Parameters
    ----------
    hidden
        Width of a vector.
    activation
        One of `ACTIVATIONS`.
    """

    def __init__(self, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.gate = nn.Linear(hidden, hidden // 2)
        self.gate_out = nn.Linear(hidden // 2, 1)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gates [...] and values [..., hidden] of genes with vectors [..., hidden]."""
        gate = self.gate_out(self.activation(self.gate(vectors))).squeeze(-1)
        return gate, self.activation(self.value(vectors))

    def terms(self, vectors: torch.Tensor, rows: Rows) -> Terms:
        """Return the gates and values, whichever genes the rows are."""
        with named_range("hetero_cell.pooling"), torch.autocast(vectors.device.type, enabled=False):
            return Terms(*self(vectors.to(self.value.weight.dtype)))

    def in_float64(self) -> Callable[[torch.Tensor, Rows], Terms]:
        """Return `terms` with the weights in float64, which pass their gradients on."""
        weights = {name: p.double() for name, p in self.named_parameters()}

        def terms(vectors: torch.Tensor, rows: Rows) -> Terms:
            return Terms(*functional_call(self, weights, (vectors,)))

        return terms
