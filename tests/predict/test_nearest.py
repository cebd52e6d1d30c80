"""The nearest sets are those that trying everything finds."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.predict import measured as module
from deltacell.predict.measured import gene_distances, nearest_sets

N = 12


def brute(vectors, genes, sets, k):
    """Try every way to match, with a cosine written out."""
    found = []
    for row, other in enumerate(sets.tolist()):
        ways = [
            np.mean([1 - cosine(vectors, a, b) for a, b in zip(genes, order, strict=True)])
            for order in permutations(other)
        ]
        found.append((min(ways), row))
    return sorted(found)[:k]


def cosine(vectors, a, b):
    if a == b:
        return 1.0
    one, other = (vectors[gene] - vectors.mean(axis=0) for gene in (a, b))
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([1, 3, 100]))
def test_nearest_equals_trying_everything(seed, size, k):
    rng = np.random.default_rng(seed)
    vectors = 5 + rng.normal(size=(N, 4))
    genes = rng.permutation(N)[:size].tolist()
    sets = np.array([rng.permutation(N)[:size] for _ in range(25)])
    found = nearest_sets(gene_distances(vectors, genes), sets, k)
    expected = brute(vectors, genes, sets, k)
    assert found.distance == pytest.approx([d for d, _ in expected], abs=1e-9)
    # Rounding may turn ties round, so the rows are compared by their distance.
    of_row = {row: d for d, row in brute(vectors, genes, sets, len(sets))}
    assert len(set(found.rows.tolist())) == len(found.rows) == min(k, 25)
    assert [of_row[row] for row in found.rows.tolist()] == pytest.approx(found.distance, abs=1e-9)


@pytest.mark.parametrize("size", [3, 5])
def test_pieces_give_what_the_whole_gives(size, monkeypatch):
    rng = np.random.default_rng(0)
    distances = gene_distances(rng.normal(size=(N, 4)), list(range(size)))
    sets = np.array([rng.permutation(N)[:size] for _ in range(90)])
    whole = nearest_sets(distances, sets, 7)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 8)
    pieces = nearest_sets(distances, sets, 7)
    assert pieces.rows.tolist() == whole.rows.tolist()
    assert pieces.distance == pytest.approx(whole.distance)


def test_a_set_is_nearest_to_itself_whatever_the_order_of_its_genes():
    vectors = np.random.default_rng(1).normal(size=(N, 4))
    sets = np.array([[3, 4, 5], [2, 0, 1], [0, 1, 3]])
    found = nearest_sets(gene_distances(vectors, [0, 1, 2]), sets, 2)
    assert found.rows.tolist()[0] == 1
    assert found.distance[0] == 0


def test_of_equally_near_sets_the_first_comes_first():
    vectors = np.eye(6)
    sets = np.array([[4, 5], [3, 4], [0, 3], [0, 5]])
    found = nearest_sets(gene_distances(vectors, [0, 1]), sets, 3)
    assert found.rows.tolist() == [2, 3, 0]
    assert found.distance == pytest.approx([0.6, 0.6, 1.2])


def test_where_all_genes_are_alike_no_other_is_near():
    assert gene_distances(np.ones((3, 2)), [1]).tolist() == [[1, 0, 1]]


def test_no_sets_give_none():
    found = nearest_sets(gene_distances(np.eye(4), [0, 1]), np.zeros((0, 2), dtype=np.int64), 3)
    assert (len(found.rows), len(found.distance)) == (0, 0)
