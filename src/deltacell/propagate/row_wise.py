"""The row-wise part of a hop, a few rows at a time, computed again in the backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch

from deltacell.propagate.gradients import gradients_of
from deltacell.propagate.hop import ALL, Hop, RowWise


def row_wise(
    hop: Hop, vectors: torch.Tensor, aggregated: torch.Tensor, rows_at_a_time: int | None
) -> torch.Tensor:
    """Return ``hop.update`` of all rows, [n, t, hidden], in the type of the old vectors.

    A few rows at a time, everything between the aggregates and the new vectors stays in cache and
    is gone when the next rows come; the backward computes it again. That takes as much time as
    reading it back from memory, and a fifth of the memory.

    Parameters
    ----------
    hop
        Its update and its parameters.
    vectors
        [n, t, hidden].
    aggregated
        [k, n, t, hidden].
    rows_at_a_time
        How many rows of ``hidden`` numbers; None for all at once, kept for the backward.
    """
    if rows_at_a_time is None:
        return hop.update(vectors, aggregated, ALL).to(vectors.dtype)
    nodes = max(1, rows_at_a_time // max(vectors.shape[1], 1))
    if torch.is_grad_enabled():
        made = _Recomputed.apply(hop.update, nodes, vectors, aggregated, *hop.parameters)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, made)
    return _in_pieces(hop.update, nodes, vectors, aggregated)


def autocast_here(device_type: str) -> Callable[[], AbstractContextManager[object]]:
    """Return what makes the autocast that is in force here and now, for another place or time."""
    # Not cached: casts made here without a gradient must not be found by those that need one.
    return partial(
        torch.autocast,
        device_type,
        torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )


class _Recomputed(torch.autograd.Function):
    """``update(vectors, aggregated, rows)``; keeps its arguments and nothing between."""

    @staticmethod
    def forward(
        ctx: Any,
        update: RowWise,
        nodes: int,
        vectors: torch.Tensor,
        aggregated: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.update, ctx.nodes = update, nodes
        ctx.autocast = autocast_here(vectors.device.type)
        ctx.save_for_backward(vectors, aggregated, *parameters)
        return _in_pieces(update, nodes, vectors, aggregated)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        vectors, aggregated, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        by_vectors = torch.zeros_like(vectors) if wanted[0] else None
        by_aggregated = torch.zeros_like(aggregated) if wanted[1] else None
        by_parameter: list[torch.Tensor | None] = [None] * len(parameters)
        with ctx.autocast():
            for rows in _pieces(len(vectors), ctx.nodes):
                with torch.enable_grad():
                    old = vectors[rows].detach().requires_grad_(wanted[0])
                    received = aggregated[:, rows].detach().requires_grad_(wanted[1])
                    new = ctx.update(old, received, rows)
                inputs = [old, received, *parameters]
                parts = gradients_of(new, inputs, gradient[rows])
                if by_vectors is not None and parts[0] is not None:
                    by_vectors[rows] = parts[0]
                if by_aggregated is not None and parts[1] is not None:
                    by_aggregated[:, rows] = parts[1]
                by_parameter = [_sum(a, b) for a, b in zip(by_parameter, parts[2:], strict=True)]
        return None, None, by_vectors, by_aggregated, *by_parameter


def _in_pieces(
    update: RowWise, nodes: int, vectors: torch.Tensor, aggregated: torch.Tensor
) -> torch.Tensor:
    new = torch.empty_like(vectors)
    with autocast_here(vectors.device.type)():
        for rows in _pieces(len(vectors), nodes):
            new[rows] = update(vectors[rows], aggregated[:, rows], rows)
    return new


def _pieces(n: int, nodes: int) -> list[slice]:
    return [slice(begin, min(begin + nodes, n)) for begin in range(0, n, nodes)]


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b
