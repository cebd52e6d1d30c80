from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from deltacell.propagate import Aggregate, SparseMatrix
from deltacell.propagate import wild as common_entries
from deltacell.propagate.wild import in_parts


@pytest.fixture(autouse=True)
def _small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_entries, "WORTH", 0.1)
    monkeypatch.setattr(common_entries, "LOOKED_AT", 1)


def pattern(density: float, seed: int) -> csr_array:
    drawn = random_array((30, 30), density=density, rng=np.random.default_rng(seed))
    return csr_array(drawn.astype(bool).astype(np.float32))


def handle(matrix: csr_array, values: bool = False) -> SparseMatrix:
    matrix.sort_indices()
    data = matrix.data if values else None
    return SparseMatrix(matrix.indptr, matrix.indices, data, n_columns=matrix.shape[1])


def dense(matrix: SparseMatrix) -> np.ndarray:
    ones = np.ones(matrix.n_entries)
    return csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape).toarray()


def test_the_parts_add_up_and_share_what_is_common() -> None:
    base = pattern(0.2, 0)
    a, b = base.maximum(pattern(0.1, 1)), base.maximum(pattern(0.1, 2))
    other = pattern(0.01, 3)
    aggregates = [Aggregate("gene", handle(m)) for m in (a, other, b)]
    parts = in_parts(aggregates)
    assert parts[0].common is parts[2].common
    assert parts[1].common is None
    assert parts[0].common is not None
    np.testing.assert_array_equal(dense(parts[0].common), (a.multiply(b)).toarray())
    for aggregate, part in zip(aggregates, parts, strict=True):
        total = sum(dense(m) for m in part.of(aggregate.matrix))
        np.testing.assert_array_equal(total, dense(aggregate.matrix))
        for m in part.of(aggregate.matrix):
            np.testing.assert_array_equal(dense(m.transpose), dense(m).T)
    entries = sum(p.cost(a.matrix) for a, p in zip(aggregates, parts, strict=True))
    assert entries == a.nnz + b.nnz + other.nnz - parts[0].common.n_entries


def test_a_symmetric_matrix_less_a_directed_one() -> None:
    directed = pattern(0.3, 0)
    both = csr_array(directed.maximum(directed.T))
    undirected = handle(both)
    undirected = SparseMatrix(undirected.indptr, undirected.indices, symmetric=True)
    parts = in_parts([Aggregate("gene", undirected), Aggregate("gene", handle(directed))])
    for part in parts:
        assert part.own is not None
        assert part.common is not None
        for m in (part.own, part.common):
            np.testing.assert_array_equal(dense(m.transpose), dense(m).T)


def test_what_is_not_comparable() -> None:
    a = pattern(0.3, 0)
    for one, other in (
        (Aggregate("gene", handle(a)), Aggregate("reaction", handle(a))),
        (Aggregate("gene", handle(a, values=True)), Aggregate("gene", handle(a))),
    ):
        assert all(part.common is None for part in in_parts([one, other]))


def test_little_in_common_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_entries, "WORTH", 16)
    a = pattern(0.3, 0)
    parts = in_parts([Aggregate("gene", handle(a)), Aggregate("gene", handle(a))])
    assert all(part.common is None for part in parts)


def test_found_once_and_dropped_with_the_cell() -> None:
    a = pattern(0.3, 0)
    matrices = [handle(a), handle(a)]
    aggregates = [Aggregate("gene", m) for m in matrices]
    assert in_parts(aggregates) is in_parts([Aggregate("gene", m) for m in matrices])
    assert in_parts(aggregates) is not in_parts(aggregates[::-1])
    gone = [weakref.ref(m) for m in matrices]
    del aggregates, matrices
    gc.collect()
    assert [g() for g in gone] == [None, None]
