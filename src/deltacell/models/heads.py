"""How HeteroCell reads a mutant: pooling, the global head, and the gate between two scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deltacell.models.base import activation_of, check_choice, named_range
from deltacell.propagate import Terms
from deltacell.propagate.hop import Rows

Z_NORMS = ("scale", "norm", "none")
"""What may be done to the difference z before the global head."""

EPISTASIS = 1000.0
"""How many times larger z is than epistasis, roughly."""


class Pooling(nn.Module):
    """``p = sum_i w_i v_i`` over living genes, w the softmax of gate(x_i), v_i = act(Linear(x_i)).

    The gate is Linear(hidden, hidden / 2), act, Linear(hidden / 2, 1). Gates and values are
    computed in fp32 or better whatever the autocast, because only a tiny difference of them counts.
    """

    def __init__(self, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.gate = nn.Linear(hidden, hidden // 2)
        self.gate_out = nn.Linear(hidden // 2, 1)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gates [...] and values [..., hidden] of genes with vectors [..., hidden]."""
        gate = self.gate_out(self.activation(self.gate(vectors))).squeeze(-1)
        return gate, self.activation(self.value(vectors))

    def terms(self, vectors: Tensor, rows: Rows) -> Terms:
        """Return the gates and values, which do not depend on which genes the rows are."""
        with named_range("hetero_cell.pooling"), torch.autocast(vectors.device.type, enabled=False):
            return Terms(*self(vectors.to(self.value.weight.dtype)))

    def in_float64(self) -> Callable[[Tensor, Rows], Terms]:
        """Return `terms` with the weights in float64; they still receive gradients."""
        weights = {name: p.double() for name, p in self.named_parameters()}

        def terms(vectors: Tensor, rows: Rows) -> Terms:
            return Terms(*functional_call(self, weights, (vectors,)))

        return terms


class GlobalHead(nn.Module):
    """A score from the difference z of the whole cell: Linear(hidden, hidden), act, Linear.

    z is about 1 / n_genes for each deleted gene, far from the size that layers start from.

    Parameters
    ----------
    z_norm
        ``scale`` multiplies z by a learned number that starts at n_genes; ``norm`` normalises
        ``n_genes * z`` to mean 0 and deviation 1, which forgets its size; ``none`` leaves it.
    epistasis
        Whether it also reads the part of z that no smaller set explains. That part is about a
        thousand times smaller than z and differs by orders of magnitude between genotypes, so it
        is read as ``asinh(scale * n_genes * epistasis)`` with a learned scale from `EPISTASIS` on.
    lost
        Whether it also reads the sum over the reactions that no smaller set loses.
    """

    def __init__(
        self,
        n_genes: int,
        hidden: int,
        activation: str,
        z_norm: str,
        *,
        epistasis: bool = False,
        lost: bool = False,
    ) -> None:
        super().__init__()
        check_choice("z_norm", z_norm, Z_NORMS)
        self.activation = activation_of(activation)
        self.n_genes = n_genes
        self.norm = nn.LayerNorm(hidden) if z_norm == "norm" else None
        self.log_scale = (
            nn.Parameter(torch.tensor(math.log(max(n_genes, 1)))) if z_norm == "scale" else None
        )
        self.epistasis_log_scale = (
            nn.Parameter(torch.tensor(math.log(EPISTASIS))) if epistasis else None
        )
        self.inner = nn.Linear((1 + epistasis + lost) * hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self, z: Tensor, epistasis: Tensor | None = None, lost: Tensor | None = None
    ) -> Tensor:
        """Return scores [b] for z, epistasis and lost reactions, [b, hidden] each."""
        if self.log_scale is not None:
            z = z * self.log_scale.exp()
        if self.norm is not None:
            z = self.norm(self.n_genes * z)
        read = [z]
        if self.epistasis_log_scale is not None and epistasis is not None:
            scale = self.n_genes * self.epistasis_log_scale.double().exp()
            read.append((scale * epistasis).asinh().to(z.dtype))
        if lost is not None:
            read.append(lost.to(z.dtype))
        z = torch.cat(read, -1)
        return self.out(self.activation(self.inner(z))).squeeze(-1)  # type: ignore[no-any-return]


class ScoreGate(nn.Module):
    """A weighted mean of two scores: softmax(Linear(2, hidden), act, Linear(hidden, 2)) of them."""

    def __init__(self, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.inner = nn.Linear(2, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score [b] and the weights [b, 2] for scores [b, 2]."""
        logits = self.out(self.activation(self.inner(scores)))
        weights = logits.softmax(-1).to(scores.dtype)
        return (weights * scores).sum(-1), weights
