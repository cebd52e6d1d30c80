"""Several linear layers of one size, in one product."""

from __future__ import annotations

import math

import torch
from torch import nn


class StackedLinear(nn.Module):
    """k linear layers of one size, ``y[i] = x[i] W[i] + b[i]``, started like `torch.nn.Linear`.

    Parameters
    ----------
    k
        How many.
    n_in, n_out
        Their widths.
    """

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_uniform(k, n_in, n_out, n_in=n_in))
        self.bias = nn.Parameter(default_uniform(k, 1, n_out, n_in=n_in))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [k, m, n_out] for x [k, m, n_in]."""
        return torch.baddbmm(self.bias, x, self.weight)


def default_uniform(*shape: int, n_in: int) -> torch.Tensor:
    """Return numbers drawn as `torch.nn.Linear` draws its own, for n_in inputs."""
    bound = 1 / math.sqrt(n_in)
    return torch.empty(*shape).uniform_(-bound, bound)
