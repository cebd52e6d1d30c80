"""Entries that several matrices have in common, multiplied once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from weakref import WeakKeyDictionary, ref

import numpy as np

from deltacell.arrays import Ints, offsets_of
from deltacell.propagate.hop import Aggregate
from deltacell.propagate.product import SparseMatrix

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
