"""What message passing is made of: hops, each of which gives one kind of node new vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch

from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.workers import ALL, Pieces, Rows, gradients_of, row_wise

__all__ = ["ALL", "Aggregate", "Hop", "Message", "Rows", "State", "gradients_of"]

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"

State = Mapping[str, torch.Tensor]
"""The vectors of each kind of node, [n, hidden] in the wild type."""

RowWise = Callable[[torch.Tensor, torch.Tensor, Rows], torch.Tensor]
"""From old vectors [m, t, hidden], what was received [k, m, t, hidden] and which nodes the m are
to new vectors; of each row on its own, so that a strategy may compute some rows and not others.

What is random in it, such as dropout, is fixed before the hops are made and looked up by the rows,
so that the wild type and all mutants see the same.
"""

MessageGradients = tuple[torch.Tensor | None, torch.Tensor | None, Sequence[torch.Tensor | None]]
"""Of the vectors, of what was received, and of each parameter."""


@dataclass(frozen=True, eq=False)
class Message:
    """What one aggregate adds to the new vectors of a hop whose update is a sum."""

    # From old vectors and what was received over the aggregate, both [m, hidden], and the rows.
    function: Callable[[torch.Tensor, torch.Tensor, Rows], torch.Tensor]
    # All tensors that it reads and that want a gradient.
    parameters: tuple[torch.Tensor, ...] = ()
    # The gradients, faster than by automatic differentiation; see `row_wise`.
    gradients: Callable[..., MessageGradients] | None = None

    def apply(
        self, rows: Rows, vectors: torch.Tensor, received: torch.Tensor, pieces: Pieces
    ) -> torch.Tensor:
        """Return the messages at some rows, [m, hidden]; the backward computes them again."""
        if not len(vectors):
            return vectors
        found: torch.Tensor = row_wise(
            self.function, rows, [vectors, received], self.parameters, pieces, self.gradients
        )
        return found.to(vectors.dtype)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What the nodes of a hop receive over one matrix, row = target and column = source.

    ``a[i] = sum over living j of matrix[i, j] x[j]``, and with `mean` that divided by the number of
    entries of row i whose j lives, 0 where there is none.
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

    def scale(self, like: torch.Tensor) -> torch.Tensor:
        """Return what makes a mean of a sum in the wild type, [n_rows, 1]."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.matrix.row_counts(device=like.device, dtype=dtype).clamp(min=1).reciprocal()


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
        per aggregate; a strategy may then compute each on rows of its own.
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

    def apply(
        self, rows: Rows, vectors: torch.Tensor, received: Sequence[torch.Tensor], pieces: Pieces
    ) -> torch.Tensor:
        """Return the new vectors at some rows; the backward computes them again.

        Vectors, and what was received over each aggregate, are [m, hidden] or [m, t, hidden].
        """

        def update(own: torch.Tensor, *others: torch.Tensor | Rows) -> torch.Tensor:
            *heard, at = others
            return self.update(own, torch.stack(heard), at).to(own.dtype)  # type: ignore[arg-type]

        if not len(vectors):
            return vectors
        flat = vectors.dim() == 2
        inputs = [x.unsqueeze(1) if flat else x for x in (vectors, *received)]
        found: torch.Tensor = row_wise(update, rows, inputs, self.parameters, pieces)
        return found.squeeze(1) if flat else found

    def in_float64(self) -> Hop:
        """Return the hop in float64; itself where its parameters are."""
        if all(p.dtype == torch.float64 for p in self.parameters):
            return self
        assert self.wide is not None
        return self.wide()

    @property
    def width(self) -> int:
        """The width of vectors, as far as parameters tell: their commonest last size."""
        sizes = Counter(p.shape[-1] for p in self.parameters if p.dim())
        return sizes.most_common(1)[0][0] if sizes else 1


def sizes_of(hops: Sequence[Hop]) -> dict[str, int]:
    """Return the number of nodes of each kind."""
    sizes: dict[str, int] = {}
    for hop in hops:
        for a in hop.aggregates:
            sizes[hop.target], sizes[a.source] = a.matrix.shape
    return sizes


def place_of(hops: Sequence[Hop]) -> tuple[torch.device, torch.dtype]:
    """Return where the parameters are and of what type; float32 on a CPU where there are none."""
    for hop in hops:
        for parameter in hop.parameters:
            return parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    return torch.device("cpu"), torch.float32


class Terms(NamedTuple):
    """What each gene brings to the pool."""

    gate: torch.Tensor  # logarithm of its weight, up to a constant of the cell, [m, ...]
    value: torch.Tensor  # what is averaged, [m, ..., hidden]


class Readout(Protocol):
    """What is read from the genes of a cell, row by row, to be pooled."""

    def terms(self, vectors: torch.Tensor, rows: Rows) -> Terms:
        """Return the terms of genes with the given vectors [m, ..., hidden], in fp32 or better."""

    def parameters(self) -> Iterable[torch.Tensor]:
        """Return all tensors that `terms` reads and that want a gradient."""

    def in_float64(self) -> Callable[[torch.Tensor, Rows], Terms]:
        """Return `terms` with its parameters in float64, which pass their gradients on."""


class WildPool(NamedTuple):
    """The pooled wild type."""

    total: torch.Tensor  # logarithm of the sum of exp(gate), float64
    weight: torch.Tensor  # of each gene, float64 [n]
    value: torch.Tensor  # of each gene, [n, hidden]
    pooled: torch.Tensor  # their weighted mean, [hidden]

    def at(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Return what `pool_changes` reads of m genes: [m], [m], [m, hidden] and [m, hidden]."""
        parts = self.weight, self.value, self.pooled - self.value
        return [self.total.expand(len(rows)), *(x.index_select(0, rows) for x in parts)]


def wild_pool(terms: Terms) -> WildPool:
    """Pool the wild type from the terms of all its genes, gate [n] and value [n, hidden]."""
    gate = terms.gate.double()
    weight = gate.softmax(0)
    with torch.autocast(gate.device.type, enabled=False):
        pooled = weight.to(terms.value.dtype) @ terms.value
    return WildPool(gate.logsumexp(0), weight, terms.value, pooled)


def pool_difference(wild: WildPool, mutants: Terms, living: torch.Tensor) -> torch.Tensor:
    r"""Return z [t, hidden] of t mutants from the terms of all genes.

    ``z = sum_i (w_i v_i - w'_i v'_i) = -sum_i ((w'_i - w_i) v_i + w'_i (v'_i - v_i))``,
    where deleted genes have ``w'_i = 0``. Each cell's weights have a stabiliser of their own, so
    that no gate is too large. The terms are [n, t] and [n, t, hidden], `living` is bool [n, t];
    those of deleted genes are not read. A mutant without a living gene has an empty pool, 0.
    """
    gate = mutants.gate.double()
    # Not -inf: without any living gene the weights must stay numbers.
    lowest = torch.finfo(gate.dtype).min
    weight = gate.masked_fill(~living, lowest).softmax(0).masked_fill(~living, 0)
    change = (weight - wild.weight.unsqueeze(1)).to(wild.value.dtype)
    moved = mutants.value - wild.value.unsqueeze(1)
    with torch.autocast(gate.device.type, enabled=False):
        by_weight = change.t() @ wild.value
        by_value = torch.bmm(weight.to(moved.dtype).t().unsqueeze(1), moved.transpose(0, 1))
    return -(by_weight + by_value.squeeze(1))


def pool_changes(
    mutants: Terms,
    living: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    value: torch.Tensor,
    apart: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return what m changed genes add to N [m, hidden] and to D [m], in ``z = N / (1 + D)``.

    With ``w'_i, v'_i`` for a mutant's terms, scaled as the wild type's are,
    ``N = sum_i (w_i (v_i - p) - w'_i (v'_i - p))`` and ``D = sum_i (w'_i - w_i)``. Genes that did
    not change add nothing to either sum, and deleted ones have ``w'_i = 0``. Rounding grows with
    ``1 / (1 + D)``, which is about 1 unless the changed genes hold nearly all the weight;
    `pool_difference` has no such limit. The wild type's part is that of `WildPool.at`.
    """
    new = (mutants.gate.double() - total).exp() * living
    change = new - weight
    by_weight = change.to(value.dtype).unsqueeze(1) * apart
    by_value = new.to(value.dtype).unsqueeze(1) * (value - mutants.value)
    return by_weight + by_value, change
