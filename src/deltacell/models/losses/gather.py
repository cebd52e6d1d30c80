"""Gathering the rows of all ranks in a way that keeps the gradient."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import distributed
from torch.autograd.function import once_differentiable


def gathers() -> bool:
    """Whether there are several ranks to gather from."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def gather_rows(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the rows of all ranks, rank after rank, for tensors of equally many rows.

    Differentiable: the gradient of a row is the sum of its gradients on all ranks, so the sum of
    the ranks' losses has the gradient that it would have in one process. All ranks must call it,
    and run its backward, with the same tensors but for the number of rows, which may be 0. The
    numbers of rows are exchanged first, which waits for the device.

    Parameters
    ----------
    tensors
        Each [n, ...] with the same n.
    """
    if not gathers():
        return tensors
    # One exchange for all of them: several would have to come in the same order on every rank.
    widths = [math.prod(t.shape[1:]) for t in tensors]
    flat = torch.cat([t.reshape(len(t), w) for t, w in zip(tensors, widths, strict=True)], dim=1)
    rows = _gathered(flat, _sizes_of_ranks(flat))
    return tuple(
        part.reshape(len(rows), *t.shape[1:]).to(t.dtype)
        for part, t in zip(torch.split_with_sizes(rows, widths, dim=1), tensors, strict=True)
    )


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks; backward, the sum over the ranks of the gradients of one's own rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        rank = distributed.get_rank()
        ctx.begin, ctx.end = sum(sizes[:rank]), sum(sizes[: rank + 1])
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[ctx.begin : ctx.end], None


def _gathered(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return cast(torch.Tensor, _GatherRows.apply(x, sizes))  # type: ignore[no-untyped-call]


def _sizes_of_ranks(x: torch.Tensor) -> list[int]:
    mine = torch.tensor([len(x)], device=x.device)
    sizes = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, mine)
    return [int(size) for size in torch.cat(sizes).tolist()]
