"""What message passing is made of: hops, each of which gives one kind of node new vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.workers import ALL, Gradients, Pieces, Rows, row_wise

__all__ = ["ALL", "GENE", "METABOLITE", "REACTION", "Aggregate", "Hop", "Message", "Rows", "State"]

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"

State = Mapping[str, Tensor]
"""The vectors of each kind of node, [n, hidden] in the wild type."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What the nodes of a hop receive over one matrix, row = target and column = source.

    ``a[i] = sum over living j of matrix[i, j] x[j]``, and with `mean` that divided by the number of
    entries of row i whose j lives, 0 where there is none.
    """

    source: str
    matrix: SparseMatrix
    mean: bool = False

    def counts(self, like: Tensor) -> Tensor:
        """Return the number of entries of each row, [n_rows, 1], in fp32 or better."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.matrix.tensor("row_counts", like.device, dtype)

    def scaled(self, sums: Tensor) -> Tensor:
        """Return what is received in the wild type, from sums over all neighbours."""
        return sums * self.counts(sums).clamp(min=1).reciprocal() if self.mean else sums


@dataclass(frozen=True, eq=False)
class Message:
    """What some aggregates of a hop add to the new vectors, of each row on its own."""

    aggregates: tuple[Aggregate, ...]  # at least one
    # From old vectors, what was received over each aggregate, [m, hidden] each, and which nodes
    # the m are. What is random in it, such as dropout, is looked up by these. In float64 where
    # the vectors are.
    function: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()  # all tensors that it reads and that want a gradient
    # The gradients, faster than by automatic differentiation; see `row_wise`.
    gradients: Callable[..., Gradients] | None = None

    def apply(
        self, rows: Rows, vectors: Tensor, received: Sequence[Tensor], pieces: Pieces
    ) -> Tensor:
        """Return the message at some rows, [m, hidden]; the backward computes it again."""
        if not len(vectors):
            return vectors
        given = rows, [vectors, *received], self.parameters
        made: Tensor = row_wise(self.function, *given, pieces, self.gradients)
        return made.to(vectors.dtype)


@dataclass(frozen=True, eq=False)
class Hop:
    """One step of message passing: the nodes of one kind receive, and change row by row.

    The new vectors are the sum of the messages, each of which a strategy may compute on some rows
    and not on others.
    """

    target: str  # the kind of node that receives
    messages: tuple[Message, ...]
    width: int  # of the vectors
    residual: bool = False  # whether the old vectors are part of the sum
    # Makes a context to carry the hop out in, such as a profiler's range.
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(a for message in self.messages for a in message.aggregates)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(p for message in self.messages for p in message.parameters)

    def added_up(self, vectors: Tensor, messages: Sequence[Tensor]) -> Tensor:
        """Return the new vectors, added one after the other, so that all strategies round alike."""
        old = vectors if self.residual else torch.zeros_like(vectors)
        return sum(messages, old).to(vectors.dtype)

    def update(self, vectors: Tensor, received: Sequence[Tensor], rows: Rows) -> Tensor:
        """Return the new vectors plainly, from old ones and what is received by each aggregate."""
        each, made = iter(received), []
        for message in self.messages:
            own = [next(each) for _ in message.aggregates]
            made.append(message.function(vectors, *own, rows))
        return self.added_up(vectors, made)


def sizes_of(hops: Sequence[Hop]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for hop in hops:
        for a in hop.aggregates:
            sizes[hop.target], sizes[a.source] = a.matrix.shape
    return sizes


def place_of(hops: Sequence[Hop]) -> tuple[torch.device, torch.dtype]:
    """Return where the parameters are and of what type; float32 on a CPU where there are none."""
    for parameter in (p for hop in hops for p in hop.parameters):
        return parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    return torch.device("cpu"), torch.float32
