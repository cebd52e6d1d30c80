"""The aggregates of a hop, one sparse product each, into one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from deltacell.propagate.hop import Aggregate
from deltacell.propagate.product import SparseMatrix, multiply

Scales = tuple[torch.Tensor | None, ...]


def aggregate(
    aggregates: Sequence[Aggregate], state: Mapping[str, torch.Tensor], scales: Scales
) -> torch.Tensor:
    """Return what each node receives over each of k matrices, [k, n_target, t, hidden].

    ``a[k, i, b] = scales[k][i, b] * sum over j of matrix_k[i, j] x[j, b]``, in float32 or float64
    whatever the autocast. Deleted rows of x must be 0. Product by product, because the rows of one
    relation stay in cache where those of all do not, most of all in the backward.

    Parameters
    ----------
    aggregates
        The matrices and the kinds of node that they read.
    state
        x of each kind, contiguous [n_source, t, hidden].
    scales
        One [n_target, t] an aggregate, or None for 1.
    """
    sources = list(dict.fromkeys(a.source for a in aggregates))
    matrices = tuple(a.matrix for a in aggregates)
    which = tuple(sources.index(a.source) for a in aggregates)
    xs = [state[s].to(torch.promote_types(state[s].dtype, torch.float32)) for s in sources]
    return cast(torch.Tensor, _Gather.apply(matrices, scales, which, *xs))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """From sources [n_source, t, hidden] to slabs [k, n_target, t, hidden]."""

    @staticmethod
    def forward(
        ctx: Any,
        matrices: tuple[SparseMatrix, ...],
        scales: Scales,
        which: tuple[int, ...],
        *xs: torch.Tensor,
    ) -> torch.Tensor:
        ctx.matrices, ctx.scales, ctx.which = matrices, scales, which
        slabs = xs[0].new_empty(len(matrices), matrices[0].shape[0], *xs[0].shape[1:])
        for slab, matrix, scale, source in zip(slabs, matrices, scales, which, strict=True):
            _multiply(slab.flatten(1), matrix, xs[source].flatten(1), add=False)
            if scale is not None:
                slab.mul_(scale.unsqueeze(-1))
        return slabs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        transposed = tuple(m.transpose for m in ctx.matrices)
        found = _Spread.apply(transposed, ctx.scales, ctx.which, gradient)  # type: ignore[no-untyped-call]
        return None, None, None, *found


class _Spread(torch.autograd.Function):
    """The transpose of `_Gather`: from slabs to the sum over those that read each source."""

    @staticmethod
    def forward(
        ctx: Any,
        matrices: tuple[SparseMatrix, ...],
        scales: Scales,
        which: tuple[int, ...],
        slabs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.matrices, ctx.scales, ctx.which = matrices, scales, which
        found: dict[int, torch.Tensor] = {}
        for slab, matrix, scale, source in zip(slabs, matrices, scales, which, strict=True):
            scaled = slab if scale is None else slab * scale.unsqueeze(-1)
            first = source not in found
            if first:
                found[source] = slabs.new_empty(matrix.shape[0], *slabs.shape[2:])
            _multiply(found[source].flatten(1), matrix, scaled.flatten(1), add=not first)
        return tuple(found[source] for source in range(len(found)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        transposed = tuple(m.transpose for m in ctx.matrices)
        slabs = _Gather.apply(transposed, ctx.scales, ctx.which, *gradients)  # type: ignore[no-untyped-call]
        return None, None, None, slabs


def _multiply(out: torch.Tensor, matrix: SparseMatrix, x: torch.Tensor, *, add: bool) -> None:
    """Write ``matrix @ x`` to out, or add it; all [rows, width]."""
    found = multiply(matrix, x.contiguous())
    if add:
        out.add_(found)
    else:
        out.copy_(found)
