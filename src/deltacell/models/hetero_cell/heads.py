"""The pool of a cell, and the score from the difference between two pools."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.checks import check_choice
from deltacell.models.base import named_range
from deltacell.models.hetero_cell.precision import in_precision_of
from deltacell.propagate.parallel.chunks import Rows
from deltacell.propagate.pool import Terms

Z_NORMS = ("scale", "norm", "none")
EPISTASIS = 1000.0  # the rough ratio of z to epistasis


class Pooling(nn.Module):
    """``p = sum_i w_i v_i`` over living genes, w the softmax of gate(x_i), v_i = act(Linear(x_i)).

    The gate is Linear(hidden, hidden / 2), act, Linear(hidden / 2, 1). Gates and values are
    computed in fp32 or better even inside autocast, because only their tiny differences matter.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        act = nn.GELU()
        half = hidden // 2
        self.gate = nn.Sequential(nn.Linear(hidden, half), act, nn.Linear(half, 1))
        self.value = nn.Sequential(nn.Linear(hidden, hidden), act)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return gates [...] and values [..., hidden] of vectors [..., hidden]."""
        return self.gate(vectors).squeeze(-1), self.value(vectors)

    def terms(self, vectors: Tensor, rows: Rows) -> Terms:
        """Return gates [...] and values [..., hidden] of vectors; ``rows`` is not used."""
        with named_range("hetero_cell.pooling"), torch.autocast(vectors.device.type, enabled=False):
            return Terms(*in_precision_of(self, vectors))


class GlobalHead(nn.Module):
    """A score from the difference z of the whole cell: Linear(hidden, hidden), act, Linear.

    z is about 1 / n_genes for each deleted gene. With the `z_norm` ``scale`` it is multiplied by a
    learned number that starts at n_genes; ``norm`` is a LayerNorm of ``n_genes * z``. Epistasis is
    about a thousand times smaller and varies by orders of magnitude, so the head reads
    ``asinh(scale * n_genes * epistasis)`` with a learned scale that starts at `EPISTASIS`.
    """

    def __init__(self, n_genes: int, hidden: int, z_norm: str, epistasis: bool, lost: bool) -> None:
        super().__init__()
        check_choice("z_norm", z_norm, Z_NORMS)
        self.n_genes = n_genes
        self.norm = nn.LayerNorm(hidden) if z_norm == "norm" else None
        self.log_scale = _log_parameter(max(n_genes, 1)) if z_norm == "scale" else None
        self.epistasis_log_scale = _log_parameter(EPISTASIS) if epistasis else None
        self.inner = nn.Linear((1 + epistasis + lost) * hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self,
        z: Tensor,
        epistasis: Tensor | None = None,
        lost: Tensor | None = None,
    ) -> Tensor:
        """Return scores [b] from z, epistasis and the sum of lost reactions, [b, hidden] each."""
        if self.log_scale is not None:
            z = z * self.log_scale.exp()
        if self.norm is not None:
            z = self.norm(self.n_genes * z)
        inputs = [z]
        if self.epistasis_log_scale is not None and epistasis is not None:
            scale = self.n_genes * self.epistasis_log_scale.double().exp()
            inputs.append((scale * epistasis).asinh().to(z.dtype))
        if lost is not None:
            inputs.append(lost.to(z.dtype))
        inner = functional.gelu(self.inner(torch.cat(inputs, -1)))
        return self.out(inner).squeeze(-1)  # type: ignore[no-any-return]


def _log_parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(math.log(value)))
