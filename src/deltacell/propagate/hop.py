"""Message passing as a sequence of hops, each of which updates the vectors of one kind of node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.workers import Gradients, Pieces, Rows, row_wise

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"

State = Mapping[str, Tensor]
"""The vectors of each kind of node, [n, hidden] in the wild type."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The sum that the nodes of a hop receive over a matrix, row = target and column = source.

    ``a[i] = sum over living j of matrix[i, j] x[j]``; with `mean` it is divided by the number of
    entries of row i with a living j, and 0 if there is none.
    """

    source: str
    matrix: SparseMatrix
    mean: bool = False

    def counts(self, like: Tensor) -> Tensor:
        """Return the number of entries of each row, [n_rows, 1], in fp32 or better."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.matrix.tensor("row_counts", like.device, dtype)

    def scaled(self, sums: Tensor) -> Tensor:
        """Return the aggregate in the wild type, from the sums over all neighbours."""
        return sums * self.counts(sums).clamp(min=1).reciprocal() if self.mean else sums


@dataclass(frozen=True, eq=False)
class Message:
    """A row-wise function of some aggregates of a hop; the new vectors are a sum of messages."""

    aggregates: tuple[Aggregate, ...]  # at least one
    # Takes the old vectors and each aggregate, [m, hidden] each, and the m nodes they belong to, by
    # which random numbers such as dropout are looked up. In float64 if the vectors are.
    function: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()  # all tensors that it reads and that need a gradient
    gradients: Callable[..., Gradients] | None = None  # see `row_wise`

    def apply(
        self,
        rows: Rows,
        vectors: Tensor,
        received: Sequence[Tensor],
        pieces: Pieces,
    ) -> Tensor:
        """Return the message at some rows, [m, hidden]; the backward recomputes it."""
        if not len(vectors):
            return vectors
        given = rows, [vectors, *received], self.parameters
        made: Tensor = row_wise(self.function, *given, pieces, self.gradients)
        return made.to(vectors.dtype)


@dataclass(frozen=True, eq=False)
class Hop:
    """One step of message passing: the new vectors of one kind of node are a sum of messages."""

    target: str  # the kind of node that receives
    messages: tuple[Message, ...]
    width: int  # of the vectors
    residual: bool = False  # whether the old vectors are part of the sum
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # e.g. a profiler's range

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(a for message in self.messages for a in message.aggregates)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(p for message in self.messages for p in message.parameters)

    def added_up(self, vectors: Tensor, messages: Sequence[Tensor]) -> Tensor:
        """Return the new vectors; the fixed order makes all strategies round alike."""
        old = vectors if self.residual else torch.zeros_like(vectors)
        return sum(messages, old).to(vectors.dtype)

    def update(self, vectors: Tensor, received: Sequence[Tensor], rows: Rows) -> Tensor:
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
    """Return the device and dtype of the parameters; without any, the CPU and float32."""
    for parameter in (p for hop in hops for p in hop.parameters):
        return parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    return torch.device("cpu"), torch.float32
