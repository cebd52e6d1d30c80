"""The global head of HeteroCell, and how its score is joined with the local one."""

from __future__ import annotations

import math

import torch
from torch import nn

from deltacell.errors import InputError
from deltacell.models.activation import activation_of

Z_NORMS = ("scale", "norm", "none")
"""What may be done to the difference z before the global head."""


EPISTASIS = 1000.0
"""How many times larger z is than epistasis, about."""


class GlobalHead(nn.Module):
    """A score from the difference z of the whole cell: Linear(hidden, hidden), act, Linear.

    z is about 1 / n_genes for each deleted gene, far from the size that layers start from.
    ``scale`` multiplies it by a learned number that starts at n_genes; ``norm`` normalises
    ``n_genes * z`` to mean 0 and deviation 1, which forgets how large it was; ``none`` leaves it.

    Parameters
    ----------
    n_genes
        Number of genes.
    hidden
        Width of z.
    activation
        One of `ACTIVATIONS`.
    z_norm
        One of `Z_NORMS`.
    epistasis
        Whether it also reads the part of z that no smaller set explains. That is some thousand
        times smaller than z and differs by orders of magnitude between genotypes, so it is read as
        ``asinh(scale * n_genes * epistasis)``, with a learned scale that starts at `EPISTASIS`.
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
        if z_norm not in Z_NORMS:
            raise InputError(f"there is no z_norm '{z_norm}'; there are {', '.join(Z_NORMS)}")
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
        self,
        z: torch.Tensor,
        epistasis: torch.Tensor | None = None,
        lost: torch.Tensor | None = None,
    ) -> torch.Tensor:
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
        z = torch.cat(read, -1) if len(read) > 1 else z
        return self.out(self.activation(self.inner(z))).squeeze(-1)  # type: ignore[no-any-return]


class ScoreGate(nn.Module):
    """A weighted mean of two scores: softmax(Linear(2, hidden), act, Linear(hidden, 2)) of them.

    Parameters
    ----------
    hidden
        Width between the two layers.
    activation
        One of `ACTIVATIONS`.
    """

    def __init__(self, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.inner = nn.Linear(2, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the score [b] and the weights [b, 2] for scores [b, 2]."""
        logits = self.out(self.activation(self.inner(scores)))
        weights = logits.softmax(-1).to(scores.dtype)
        return (weights * scores).sum(-1), weights
