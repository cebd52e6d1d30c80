"""The sparse product: right, differentiable, and outside autocast."""

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck, gradgradcheck

from deltacell import Relation
from deltacell.propagate.product import SparseMatrix, product


@pytest.fixture
def problem():
    matrix = scipy.sparse.random(7, 5, 0.4, random_state=0, format="csr")
    return SparseMatrix.from_scipy(matrix), torch.from_numpy(matrix.toarray())


def test_the_product_and_its_gradients_equal_those_of_the_dense_matrix(problem):
    matrix, dense = problem
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(product(matrix, x), torch.einsum("ij,jkl->ikl", dense, x))
    torch.testing.assert_close(product(matrix, x[:, 0, 0]), dense @ x[:, 0, 0])
    torch.testing.assert_close(product(matrix.transpose, torch.eye(7).double()), dense.t())
    leaf = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: product(matrix, x), leaf)
    assert gradgradcheck(lambda x: product(matrix, x), leaf)


def test_the_product_is_float32_inside_autocast_and_the_gradient_of_a_half_is_a_half(problem):
    matrix, dense = problem
    x = torch.randn(5, 3)
    half = x.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        rounded, single = product(matrix, half), product(matrix, x)
    assert rounded.dtype == single.dtype == torch.float32
    torch.testing.assert_close(single, dense.float() @ x)
    torch.testing.assert_close(rounded, dense.float() @ half.float())
    rounded.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("directed", [True, False])
def test_a_relation_has_one_matrix_with_a_transpose(directed):
    edges = np.random.default_rng(0).integers(0, 9, (2, 30))
    relation = Relation.from_edges("r", *edges, n_genes=9, directed=directed)
    matrix = SparseMatrix.of(relation)
    assert SparseMatrix.of(relation) is matrix
    assert (matrix.transpose is matrix) == (not directed)
    assert matrix.transpose.transpose is matrix
    a, t = (m.csr(device="cpu", dtype=torch.float64) for m in (matrix, matrix.transpose))
    assert matrix.csr(device="cpu", dtype=torch.float64) is a
    entries = relation.entries()
    expected = torch.zeros(9, 9, dtype=torch.float64)
    expected[entries.target, entries.source] = 1
    assert torch.equal(a.to_dense(), expected)
    assert torch.equal(t.to_dense(), expected.t())
