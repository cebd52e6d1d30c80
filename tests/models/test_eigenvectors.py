"""Leading eigenvectors and singular vectors are the same in every call, also of empty matrices."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from deltacell.models import eigenvectors
from deltacell.models.eigenvectors import leading_eigenvectors, leading_singular_vectors


@pytest.fixture
def seeded():
    if not eigenvectors._SEED:
        pytest.skip("this SciPy begins again at a random vector of its own")


def sparse(n_rows, n_columns, n_entries, n_used):
    """Return a matrix whose entries are in its first rows and columns."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, n_used, size=(2, n_entries))
    return sp.csr_array((rng.normal(size=n_entries), tuple(places)), shape=(n_rows, n_columns))


def test_eigenvectors_of_a_matrix_with_few_entries_are_the_same_in_every_call(seeded):
    matrix = sparse(600, 600, n_entries=300, n_used=40)
    matrix = matrix + matrix.T
    first, second = (leading_eigenvectors(matrix, 60) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize("shape", [(600, 900), (900, 600)])
def test_singular_vectors_of_a_matrix_with_few_entries_are_the_same_in_every_call(seeded, shape):
    matrix = sp.csr_array((np.ones(3), ([0, 2, 4], [1, 3, 5])), shape=shape)
    first, second = (leading_singular_vectors(matrix, 16) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.values[:3] == pytest.approx(1)
    np.testing.assert_allclose(first.values[3:], 0, atol=1e-12)
    product = first.left * first.values @ first.right.T
    np.testing.assert_allclose(product, matrix.toarray(), atol=1e-12)


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_singular_vectors_are_those_of_scipy(shape, is_sparse):
    matrix = sparse(*shape, n_entries=3_000, n_used=60)
    matrix = matrix if is_sparse else matrix.toarray()
    start = np.random.default_rng(0).uniform(0.5, 1.5, min(shape))
    left, values, right = svds(matrix, k=5, v0=start)
    ours = leading_singular_vectors(matrix, 5)
    np.testing.assert_array_equal(ours.left, left[:, ::-1])
    np.testing.assert_array_equal(ours.values, values[::-1])
    np.testing.assert_array_equal(ours.right, right[::-1].T)


@pytest.mark.parametrize("matrix", [sp.csr_array((6, 8)), np.zeros((8, 6))])
def test_a_matrix_of_zeros_has_singular_vectors_of_zeros(matrix):
    singular = leading_singular_vectors(matrix, 3)
    assert [part.shape for part in singular] == [(matrix.shape[0], 3), (3,), (matrix.shape[1], 3)]
    assert not any(part.any() for part in singular)
