"""What message passing is made of: hops, each of which gives one kind of node new vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from deltacell.propagate.product import SparseMatrix

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"

State = Mapping[str, torch.Tensor]
"""The vectors of each kind of node: [n, hidden] of the wild type."""

Rows = slice | torch.Tensor
"""Which nodes the rows of a tensor belong to."""

ALL = slice(None)


def gradients_of(
    made: torch.Tensor, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor | None]:
    """Return the gradients of inputs; None for those that want none or had no part in it.

    Parameters
    ----------
    made
        What was made of the inputs, with its graph.
    inputs
        Of which to find the gradients.
    gradient
        Of what was made.
    """
    wanted = [x.requires_grad for x in inputs]
    chosen = [x for x, want in zip(inputs, wanted, strict=True) if want]
    if not chosen or not made.requires_grad:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(made, chosen, gradient.to(made.dtype), allow_unused=True))
    return [next(found) if want else None for want in wanted]


class RowWise(Protocol):
    """A function of each row on its own, so that a strategy may compute some rows and not others.

    What is random in it, such as dropout, is fixed before the hops are made and looked up by
    `rows`, so that the wild type and all mutants see the same.
    """

    def __call__(self, vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the new vectors [m, t, hidden].

        Parameters
        ----------
        vectors
            The old ones of m nodes in each of t mutants, [m, t, hidden].
        aggregated
            One slab per `Aggregate` of the hop, [k, m, t, hidden].
        rows
            Which nodes the m are.
        """


class MessageFunction(Protocol):
    """A function of each row on its own, of what the row received over one aggregate alone."""

    def __call__(self, vectors: torch.Tensor, received: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return messages [m, hidden] from old vectors and what was received, both [m, hidden]."""


MessageGradients = tuple[torch.Tensor | None, torch.Tensor | None, Sequence[torch.Tensor | None]]
"""Of the vectors, of what was received, and of each parameter."""


class MessageGradientFunction(Protocol):
    """The gradients of a `MessageFunction`, which it computes again."""

    def __call__(
        self,
        vectors: torch.Tensor,
        received: torch.Tensor,
        rows: Rows,
        by_message: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> MessageGradients:
        """Return the gradients from that of the messages, [m, hidden].

        Parameters
        ----------
        vectors, received, rows
            As in `MessageFunction`.
        by_message
            The gradient of the messages.
        out
            Where the gradient of what was received may be put.
        """


@dataclass(frozen=True, eq=False)
class Message:
    """What one aggregate adds to the new vectors of a hop whose update is a sum.

    Parameters
    ----------
    function
        From a row's vector and what it received over the aggregate to what is added.
    parameters
        All tensors that `function` reads and that want a gradient.
    gradients
        A faster way to the gradients than automatic differentiation of `function`, if there is one.
    """

    function: MessageFunction
    parameters: tuple[torch.Tensor, ...] = ()
    gradients: MessageGradientFunction | None = None

    def backward(
        self,
        vectors: torch.Tensor,
        received: torch.Tensor,
        rows: Rows,
        by_message: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> MessageGradients:
        """Return the gradients, the faster way or the automatic one."""
        if self.gradients is not None:
            return self.gradients(vectors, received, rows, by_message, out)
        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_()
            received = received.detach().requires_grad_()
            made = self.function(vectors, received, rows)
        inputs = [vectors, received, *self.parameters]
        by_vectors, by_received, *others = gradients_of(made, inputs, by_message)
        return by_vectors, by_received, others


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What the nodes of a hop receive over one matrix.

    ``a[i] = sum over living j of matrix[i, j] x[j]``, and with `mean` that divided by the number of
    entries of row i whose j lives, 0 where there is none.

    Parameters
    ----------
    source
        The kind of node that sends.
    matrix
        Row = target, column = source.
    mean
        Whether to divide.
    """

    source: str
    matrix: SparseMatrix
    mean: bool = False

    @cached_property
    def pattern(self) -> SparseMatrix:
        """The matrix with ones for entries; its product with the living counts them."""
        if self.matrix.values is None:
            return self.matrix
        return SparseMatrix(self.matrix.indptr, self.matrix.indices, n_columns=self.matrix.shape[1])


@dataclass(frozen=True, eq=False)
class Hop:
    """One step of message passing: nodes of one kind receive, and change row by row.

    Parameters
    ----------
    target
        The kind of node that receives.
    aggregates
        What it receives, at least one.
    update
        From its vectors and what it received to its new vectors.
    parameters
        All tensors that `update` reads and that want a gradient.
    around
        Makes a context to carry the hop out in, such as a profiler's range.
    messages
        Where the update is a sum, ``x' = sum over k of message_k(x, a_k)``, the same in parts, one
        an aggregate; a strategy may then compute each on rows of its own.
    residual
        Whether that sum has the old vector in it too, ``x' = x + sum over k of ...``.
    wide
        Makes the same hop with its parameters in float64, which pass their gradients on.
    """

    target: str
    aggregates: tuple[Aggregate, ...]
    update: RowWise
    parameters: tuple[torch.Tensor, ...] = ()
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    messages: tuple[Message, ...] | None = None
    residual: bool = False
    wide: Callable[[], Hop] | None = None

    def in_float64(self) -> Hop:
        """Return the hop in float64; itself where its parameters are."""
        if all(p.dtype == torch.float64 for p in self.parameters):
            return self
        if self.wide is None:
            raise ValueError("this hop has no form in float64")
        return self.wide()


def sizes_of(hops: Sequence[Hop]) -> dict[str, int]:
    """Return the number of nodes of each kind."""
    sizes: dict[str, int] = {}
    for hop in hops:
        for a in hop.aggregates:
            sizes[hop.target], sizes[a.source] = a.matrix.shape
    return sizes


def width_of(hop: Hop) -> int:
    """Return the width of vectors, as far as parameters tell: their commonest last size."""
    sizes = Counter(p.shape[-1] for p in hop.parameters if p.dim())
    return sizes.most_common(1)[0][0] if sizes else 1


def row_flop(hop: Hop) -> float:
    """Return the floating-point operations of a hop's update for one row, forward."""
    return 2.0 * sum(p.numel() for p in hop.parameters)


def place_of(hops: Sequence[Hop]) -> tuple[torch.device, torch.dtype]:
    """Return where the parameters are and of what type; float32 on a CPU where there are none."""
    for hop in hops:
        for parameter in hop.parameters:
            return parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    return torch.device("cpu"), torch.float32


def slices(n: int, at_a_time: int | None) -> list[slice]:
    """Return equal slices of n rows, none longer than `at_a_time`."""
    if n == 0:
        return []
    # Equal, so that none is too short to be worth a call.
    count = 1 if at_a_time is None else -(-n // max(at_a_time, 1))
    step = -(-n // count)
    return [slice(begin, min(begin + step, n)) for begin in range(0, n, step)]
