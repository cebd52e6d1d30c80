"""Message passing as a sequence of hops, each of which updates the vectors of one kind of node.

A `HopShape` says what a hop reads: its matrices, widths and numbers of weights. It belongs to a
cell and is what a strategy plans with. A `Hop` is a shape with the functions of one step, which
hold the parameters and the dropout of that step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from deltacell.propagate.parallel.chunks import Chunks, RowFunction, Rows, row_wise
from deltacell.propagate.parallel.graphs import Gradients
from deltacell.propagate.product import SparseMatrix

GENE = "gene"
REACTION = "reaction"
METABOLITE = "metabolite"

State = Mapping[str, Tensor]
"""The vectors of each kind of node, [n, hidden] in the wild type."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What the nodes of a hop receive over a matrix A, row = target and column = source.

    ``a_i = sum over living j of A_ij x_j``; with `mean` it is divided by the number of entries of
    row i with a living j, and 0 if there is none.
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
        if not self.mean:
            return sums
        return sums * self.counts(sums).clamp(min=1).reciprocal()


@dataclass(frozen=True, eq=False)
class MessageShape:
    """What a message reads: at least one aggregate, and so many numbers of weights."""

    aggregates: tuple[Aggregate, ...]
    n_weights: int


@dataclass(frozen=True, eq=False)
class HopShape:
    """What a hop reads; the new vectors of the target are a sum of messages."""

    target: str  # the kind of node that receives
    messages: tuple[MessageShape, ...]
    width: int  # of the vectors
    residual: bool = False  # whether the old vectors are part of the sum

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """All aggregates, message by message."""
        of_messages = (message.aggregates for message in self.messages)
        return tuple(chain.from_iterable(of_messages))

    @property
    def n_weights(self) -> int:
        """The numbers of weights of all messages."""
        return sum(message.n_weights for message in self.messages)


class Message(ABC):
    """A message of a hop in one step: a row-wise function of the old vectors and the aggregates.

    It computes in float64 if the vectors are float64.

    Attributes
    ----------
    aggregates
        What it reads beside the old vectors; at least one.
    parameters
        All tensors that it reads and that need a gradient.
    """

    aggregates: tuple[Aggregate, ...]
    parameters: tuple[Tensor, ...]

    @abstractmethod
    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the messages [m, hidden] to m nodes.

        Parameters
        ----------
        rows
            The nodes of the cell, by which random numbers such as dropout are looked up.
        vectors
            Their old vectors, [m, hidden].
        received
            Each aggregate of theirs, [m, hidden].
        """

    def backward(
        self,
        rows: Rows,
        vectors: Tensor,
        received: Sequence[Tensor],
        gradient: Tensor,
    ) -> Gradients | None:
        """Return the gradients of vectors, aggregates and parameters from that of the message.

        None, the default, leaves it to automatic differentiation.
        """
        return None

    def at_rows(
        self,
        rows: Rows,
        vectors: Tensor,
        received: Sequence[Tensor],
        chunks: Chunks,
    ) -> Tensor:
        """Return the message at some rows, [m, hidden]; the backward computes it again."""
        if not len(vectors):
            return vectors
        results = row_wise(_MessageRows(self), rows, [vectors, *received], chunks)
        return results[0].to(vectors.dtype)


class _MessageRows(RowFunction):
    """A message as a row-wise function of one list of tensors."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self.parameters = message.parameters

    def forward(self, rows: Rows, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the message."""
        return (self._message.forward(rows, inputs[0], inputs[1:]),)

    def backward(
        self,
        rows: Rows,
        inputs: Sequence[Tensor],
        gradient: Tensor,
    ) -> Gradients | None:
        """Return the gradients of the message, if it has them by hand."""
        return self._message.backward(rows, inputs[0], inputs[1:], gradient)


@dataclass(frozen=True, eq=False)
class Hop:
    """A hop in one step: its shape, and the function of each message."""

    shape: HopShape
    messages: tuple[Message, ...]
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # e.g. a profiler's range

    @property
    def target(self) -> str:
        """The kind of node that receives."""
        return self.shape.target

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """All aggregates, message by message."""
        return self.shape.aggregates

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that need a gradient, message by message."""
        of_messages = (message.parameters for message in self.messages)
        return tuple(chain.from_iterable(of_messages))

    def sum_of(self, vectors: Tensor, messages: Iterable[Tensor]) -> Tensor:
        """Return the new vectors; the fixed order makes all strategies round alike."""
        old = vectors if self.shape.residual else torch.zeros_like(vectors)
        return sum(messages, old).to(vectors.dtype)

    def update(self, vectors: Tensor, received: Sequence[Tensor], rows: Rows) -> Tensor:
        """Return the new vectors of some nodes from their old ones and all aggregates."""
        remaining = iter(received)
        messages = []
        for message in self.messages:
            inputs = [next(remaining) for _ in message.aggregates]
            messages.append(message.forward(rows, vectors, inputs))
        return self.sum_of(vectors, messages)


def sizes_of(shapes: Iterable[HopShape]) -> dict[str, int]:
    """Return the number of nodes of each kind that the hops read or update."""
    sizes: dict[str, int] = {}
    for shape in shapes:
        for aggregate in shape.aggregates:
            n_targets, n_sources = aggregate.matrix.shape
            sizes[shape.target] = n_targets
            sizes[aggregate.source] = n_sources
    return sizes
