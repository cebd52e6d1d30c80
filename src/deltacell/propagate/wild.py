"""The wild type, propagated once per step, with the parts that mutants are differences from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch

from deltacell.arrays import Ints, offsets_of
from deltacell.propagate.hop import Aggregate, Hop, Message, State, slices
from deltacell.propagate.product import SparseMatrix, multiply
from deltacell.propagate.protocol import WildType
from deltacell.propagate.shared import aggregate, autocast_here, row_wise
from deltacell.propagate.workers import in_any_worker, one_core

WORTH = 16
"""Entries in common, for each row, from which a product saved is worth the sum that it costs."""

LOOKED_AT = 64
"""One row of so many is looked at to guess how many entries two matrices have in common."""


@dataclass(frozen=True, eq=False)
class InParts:
    """A matrix as a sum of others.

    Parameters
    ----------
    own
        What it shares with no other; None is all of it.
    common
        What it shares with another matrix, the same object in both; None is nothing.
    """

    own: SparseMatrix | None = None
    common: SparseMatrix | None = None

    def of(self, matrix: SparseMatrix) -> tuple[SparseMatrix, ...]:
        """Return the matrices that make up the given one."""
        own = matrix if self.own is None else self.own
        return (own,) if self.common is None else (own, self.common)

    def cost(self, matrix: SparseMatrix) -> float:
        """Return the entries that are multiplied for the given matrix, half of those shared."""
        own = matrix if self.own is None else self.own
        return own.n_entries + (0 if self.common is None else self.common.n_entries / 2)


def in_parts(aggregates: Sequence[Aggregate]) -> tuple[InParts, ...]:
    """Split the matrices of a hop's aggregates, where pairs have much in common.

    Relations repeat each other's edges. With ``A = A' + C`` and ``B = B' + C``, ``C x`` is found
    once for both sums, and the gradients ``C^T (a + b)`` once for both; that is exact.

    Parameters
    ----------
    aggregates
        Those that read the same kind of node, without values, are compared.
    """
    matrices = [a.matrix for a in aggregates]
    kept = _KEPT.setdefault(matrices[0], [])
    for others, parts in kept:
        if [other() for other in others] == matrices:
            return parts
    parts = _split(aggregates)
    kept.append(([ref(m) for m in matrices], parts))
    return parts


# By the first matrix. Nothing kept here refers to a matrix of the cell, so both go together.
_KEPT: WeakKeyDictionary[SparseMatrix, list[tuple[list[ref[SparseMatrix]], tuple[InParts, ...]]]]
_KEPT = WeakKeyDictionary()


def _split(aggregates: Sequence[Aggregate]) -> tuple[InParts, ...]:
    parts = [InParts()] * len(aggregates)
    guesses = [
        (_guess(aggregates[i].matrix, aggregates[j].matrix), i, j)
        for i, j in combinations(range(len(aggregates)), 2)
        if _comparable(aggregates[i], aggregates[j])
    ]
    split: set[int] = set()
    for guess, i, j in sorted(guesses, key=lambda g: -g[0]):
        a, b = aggregates[i].matrix, aggregates[j].matrix
        if guess < WORTH * a.shape[0]:
            break
        if split.isdisjoint((i, j)):
            split |= {i, j}
            common = np.intersect1d(_keys(a), _keys(b), assume_unique=True)
            # What is left of a symmetric matrix is symmetric only if what is taken away is.
            symmetric = a.transpose is a and b.transpose is b
            whole = _of_keys(common, a.shape, symmetric)
            own = [_of_keys(_without(_keys(m), common), m.shape, symmetric) for m in (a, b)]
            parts[i], parts[j] = InParts(own[0], whole), InParts(own[1], whole)
    return tuple(parts)


def _comparable(a: Aggregate, b: Aggregate) -> bool:
    return (
        a.matrix is not b.matrix
        and a.source == b.source
        and a.matrix.values is None
        and b.matrix.values is None
    )


def _guess(a: SparseMatrix, b: SparseMatrix) -> int:
    """Return about how many entries two matrices have in common."""
    if min(a.n_entries, b.n_entries) < WORTH * a.shape[0]:
        return 0
    rows = range(0, a.shape[0], LOOKED_AT)
    seen = sum(len(np.intersect1d(_row(a, i), _row(b, i), assume_unique=True)) for i in rows)
    return seen * a.shape[0] // len(rows)


def _row(matrix: SparseMatrix, i: int) -> Ints:
    row: Ints = matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]
    return row


def _keys(matrix: SparseMatrix) -> Ints:
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return rows * matrix.shape[1] + matrix.indices


def _without(keys: Ints, others: Ints) -> Ints:
    """Return the keys that are not among others; both ascend."""
    kept = np.ones(len(keys), dtype=bool)
    kept[np.searchsorted(keys, others)] = False
    return keys[kept]


def _of_keys(keys: Ints, shape: tuple[int, int], symmetric: bool) -> SparseMatrix:
    n_rows, n_columns = shape
    return SparseMatrix(
        offsets_of(np.bincount(keys // n_columns, minlength=n_rows)),
        (keys % n_columns).astype(np.int32),
        n_columns=n_columns,
        symmetric=symmetric,
    )


@dataclass(frozen=True, eq=False)
class WildTypeInParts(WildType):
    """The wild type with what lies between its vectors.

    Parameters
    ----------
    sums
        For each hop, what was received before a mean divides, [k, n, hidden].
    messages
        For each hop, its messages, [k, n, hidden]; None where it has none.
    """

    sums: tuple[torch.Tensor, ...] = ()
    messages: tuple[torch.Tensor | None, ...] = ()

    def after(self, hops: int) -> WildTypeInParts:
        """Return what is left without the first hops."""
        return WildTypeInParts(self.states[hops:], self.sums[hops:], self.messages[hops:])


def wild_type_in_parts(
    hops: Sequence[Hop], state: State, rows_at_a_time: int | None, workers: int
) -> WildTypeInParts:
    """Propagate the wild type.

    Parameters
    ----------
    hops, state
        As in `Propagation.wild_type`.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    workers
        Threads that share the aggregates of a hop between them.
    """
    states: list[State] = [state]
    sums: list[torch.Tensor] = []
    messages: list[torch.Tensor | None] = []
    for hop in hops:
        old = states[-1]
        made = None
        with hop.around():
            if hop.messages is None:
                new, heard = _updated(hop, old, rows_at_a_time)
            else:
                job = _Job(hop, hop.messages, rows_at_a_time, workers)
                new, heard, made = job.apply(old)
        states.append({**old, hop.target: new})
        sums.append(heard)
        messages.append(made)
    return WildTypeInParts(tuple(states), tuple(sums), tuple(messages))


def _updated(
    hop: Hop, state: State, rows_at_a_time: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    each = {kind: x.unsqueeze(1) for kind, x in state.items()}
    sums = aggregate(hop.aggregates, each, (None,) * len(hop.aggregates))
    received = sums
    if any(a.mean for a in hop.aggregates):
        scaled = [
            x if scale is None else x * scale.unsqueeze(1)
            for x, scale in zip(sums, _scales(hop, sums), strict=True)
        ]
        received = torch.stack(scaled)
    new = row_wise(hop, each[hop.target], received, rows_at_a_time)
    return new.squeeze(1), sums.squeeze(2)


@dataclass(frozen=True)
class _Part:
    """A matrix that is multiplied with the vectors of a kind, for one or two aggregates."""

    source: str
    matrix: SparseMatrix


@dataclass(frozen=True, eq=False)
class _Job:
    """A hop with messages, which threads share: the products, the messages, and the sums of rows.

    Parameters
    ----------
    hop, messages
        The hop, and its messages.
    rows_at_a_time, workers
        As in `wild_type_in_parts`.
    """

    hop: Hop
    messages: tuple[Message, ...]
    rows_at_a_time: int | None
    workers: int

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of node whose vectors are read, the target first."""
        return tuple(dict.fromkeys([self.hop.target, *(a.source for a in self.hop.aggregates)]))

    @cached_property
    def parts(self) -> dict[_Part, list[int]]:
        """The aggregates that each part belongs to; the largest part first."""
        belongs: dict[_Part, list[int]] = {}
        found = in_parts(self.hop.aggregates)
        for k, (a, parts) in enumerate(zip(self.hop.aggregates, found, strict=True)):
            for matrix in parts.of(a.matrix):
                belongs.setdefault(_Part(a.source, matrix), []).append(k)
        return dict(sorted(belongs.items(), key=lambda part: -part[0].matrix.n_entries))

    def apply(self, state: State) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the new vectors, the sums and the messages."""
        xs = [state[kind] for kind in self.kinds]
        parameters = [p for m in self.messages for p in m.parameters]
        found = _Summed.apply(self, *xs, *parameters)  # type: ignore[no-untyped-call]
        return cast(tuple[torch.Tensor, torch.Tensor, torch.Tensor], found)

    def rows(self, n: int) -> list[slice]:
        """Return slices of n rows, one a thread."""
        return slices(n, -(-n // self.workers) if n else None)


class _Summed(torch.autograd.Function):
    """New vectors, sums and messages of a hop with messages."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        xs = dict(zip(job.kinds, given, strict=False))
        x, n = xs[job.hop.target], len(job.messages)
        sums, messages = _wide(x).new_empty(n, *x.shape), x.new_empty(n, *x.shape)
        new = torch.empty_like(x)
        autocast = autocast_here(x.device.type)

        def product(part: _Part) -> torch.Tensor:
            return multiply(part.matrix, _wide(xs[part.source]))

        def message(k: int) -> None:
            first, *more = [p for part, p in products.items() if k in job.parts[part]]
            with torch.no_grad(), autocast():
                sums[k] = first
                for other in more:
                    sums[k] += other
                for rows in slices(len(x), job.rows_at_a_time):
                    received = _received(sums[k], scales[k], rows)
                    messages[k, rows] = job.messages[k].function(x[rows], received, rows)

        def total(rows: slice) -> None:
            new[rows] = x[rows] if job.hop.residual else 0
            # One after the other, as in mutants, so that rounding is the same.
            for k in range(n):
                new[rows] += messages[k, rows]

        with one_core(job.workers):
            scales = _scales(job.hop, sums)
            found = in_any_worker(product, list(job.parts), job.workers)
            products = dict(zip(job.parts, found, strict=True))
            in_any_worker(message, range(n), job.workers)
            in_any_worker(total, job.rows(len(x)), job.workers)
        ctx.job, ctx.autocast = job, autocast
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sums, *given)
        return new, sums, messages

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        by_new: torch.Tensor | None,
        by_sums: torch.Tensor | None,
        by_messages: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        job: _Job = ctx.job
        sums, *given = ctx.saved_tensors
        xs = dict(zip(job.kinds, given, strict=False))
        x, n = xs[job.hop.target], len(job.messages)

        def message(k: int) -> _ByMessage:
            found = _ByMessage(x, sums[k], len(job.messages[k].parameters))
            with torch.no_grad(), ctx.autocast():
                for rows in slices(len(x), job.rows_at_a_time):
                    gradient = _total(by_new, by_messages, k, rows)
                    if gradient is not None:
                        received = _received(sums[k], scales[k], rows)
                        place = found.sums[rows]
                        parts = job.messages[k].backward(x[rows], received, rows, gradient, place)
                        found.add(rows, scales[k], *parts)
                if by_sums is not None:
                    found.sums += by_sums[k]
            return found

        def product(part: _Part) -> torch.Tensor:
            first, *more = job.parts[part]
            gradient = by[first].sums
            for k in more:
                gradient = gradient + by[k].sums
            return multiply(part.matrix.transpose, gradient)

        by_given = {kind: torch.empty_like(value) for kind, value in xs.items()}

        def total(kind: str, rows: slice) -> None:
            by_rows = by_given[kind][rows]
            by_rows.zero_()
            if kind == job.hop.target:
                if job.hop.residual and by_new is not None:
                    by_rows += by_new[rows]
                for found in by:
                    by_rows += found.own[rows]
            for part, gradient in products.items():
                if part.source == kind:
                    by_rows += gradient[rows]

        with one_core(job.workers):
            scales = _scales(job.hop, sums)
            by = in_any_worker(message, range(n), job.workers)
            found = in_any_worker(product, list(job.parts), job.workers)
            products = dict(zip(job.parts, found, strict=True))
            for kind, value in xs.items():
                in_any_worker(partial(total, kind), job.rows(len(value)), job.workers)
        return None, *by_given.values(), *(p for one in by for p in one.parameters)


class _ByMessage:
    """The gradients that come back from one message."""

    def __init__(self, x: torch.Tensor, sums: torch.Tensor, n_parameters: int) -> None:
        self.own, self.sums = torch.zeros_like(x), torch.zeros_like(sums)
        self.parameters: list[torch.Tensor | None] = [None] * n_parameters

    def add(
        self,
        rows: slice,
        scale: torch.Tensor | None,
        by_own: torch.Tensor | None,
        by_received: torch.Tensor | None,
        by_parameters: Sequence[torch.Tensor | None],
    ) -> None:
        """Take the gradients of a few rows."""
        if by_own is not None:
            self.own[rows] = by_own
        if by_received is not None:
            self.sums[rows] = by_received if scale is None else by_received * scale[rows]
        self.parameters = [
            before if more is None else more if before is None else before + more
            for before, more in zip(self.parameters, by_parameters, strict=True)
        ]


def _received(sums: torch.Tensor, scale: torch.Tensor | None, rows: slice) -> torch.Tensor:
    return sums[rows] if scale is None else sums[rows] * scale[rows]


def _total(
    by_new: torch.Tensor | None, by_messages: torch.Tensor | None, k: int, rows: slice
) -> torch.Tensor | None:
    """Return the gradient of messages, which are in the new vectors and taken for themselves."""
    if by_messages is None:
        return None if by_new is None else by_new[rows]
    return by_messages[k, rows] if by_new is None else by_messages[k, rows] + by_new[rows]


def _scales(hop: Hop, like: torch.Tensor) -> list[torch.Tensor | None]:
    return [
        a.matrix.row_counts(device=like.device, dtype=like.dtype).clamp(min=1).reciprocal()
        if a.mean
        else None
        for a in hop.aggregates
    ]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
