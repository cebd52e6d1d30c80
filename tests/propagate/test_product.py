"""The sparse product: right, differentiable, outside autocast, and without its kernels."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck, gradgradcheck

from deltacell import InputError, Relation
from deltacell.propagate.product import SparseMatrix, has_sparse_kernels, mean_product, product

MODULE = "deltacell.propagate.product"


@pytest.fixture(params=["kernels", "gathering"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways the product is computed; small parts, so that there are several."""
    if request.param == "gathering":
        monkeypatch.setattr(f"{MODULE}.has_sparse_kernels", lambda *_: False)
        monkeypatch.setattr(f"{MODULE}.GATHERED_ENTRIES", 3)
    return str(request.param)


def _random(rows: int = 7, columns: int = 5, seed: int = 0) -> tuple[SparseMatrix, torch.Tensor]:
    matrix = scipy.sparse.random(rows, columns, 0.4, random_state=seed, format="csr")
    return SparseMatrix.from_scipy(matrix), torch.from_numpy(matrix.toarray())


def test_it_is_the_product_with_the_dense_matrix(way: str) -> None:
    matrix, dense = _random()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(product(matrix, x), torch.einsum("ij,jkl->ikl", dense, x))
    torch.testing.assert_close(product(matrix, x[:, 0, 0]), dense @ x[:, 0, 0])
    torch.testing.assert_close(product(matrix.transpose, torch.eye(7).double()), dense.t())


def test_its_gradients_are_right(way: str) -> None:
    matrix, _ = _random()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: product(matrix, x), x)
    assert gradgradcheck(lambda x: product(matrix, x), x)


def test_it_is_float32_inside_autocast(way: str) -> None:
    matrix, dense = _random()
    x = torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        half = product(matrix, x.bfloat16())
        single = product(matrix, x)
    assert half.dtype == single.dtype == torch.float32
    torch.testing.assert_close(single, dense.float() @ x)
    torch.testing.assert_close(half, dense.float() @ x.bfloat16().float())


def test_the_gradient_of_a_half_is_a_half() -> None:
    matrix, _ = _random()
    x = torch.randn(5, 3).bfloat16().requires_grad_()
    product(matrix, x).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


def test_the_mean_over_no_entries_is_0() -> None:
    directed = Relation.from_edges("r", [1, 2, 0], [0, 0, 1], n_genes=3, directed=True)
    x = torch.tensor([[1.0], [2.0], [4.0]])
    mean = mean_product(SparseMatrix.of(directed), x)
    assert mean.tolist() == [[3.0], [1.0], [0.0]]


def test_an_empty_matrix_gives_zeros_with_a_gradient() -> None:
    empty = Relation.from_edges("r", [], [], n_genes=4, directed=False)
    x = torch.randn(4, 2, requires_grad=True)
    y = product(SparseMatrix.of(empty), x)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert not x.grad.any()


def test_a_relation_has_one_matrix_and_an_undirected_one_is_its_own_transpose() -> None:
    undirected = Relation.from_edges("u", [0, 1], [1, 2], [0.5, 2.0], n_genes=3, directed=False)
    directed = Relation.from_edges("d", [0, 1], [1, 2], [0.5, 2.0], n_genes=3, directed=True)
    matrix = SparseMatrix.of(undirected)
    assert SparseMatrix.of(undirected) is matrix
    assert matrix.transpose is matrix
    turned = SparseMatrix.of(directed)
    assert turned.transpose is not turned
    assert turned.transpose.transpose is turned
    kind = {"device": "cpu", "dtype": torch.float64}
    assert torch.equal(turned.csr(**kind).to_dense(), directed.csr(dtype=torch.float64).to_dense())
    weighted = SparseMatrix.of(directed, weighted=True)
    assert weighted.csr(**kind).to_dense().sum() == 2.5


def test_tensors_are_kept_and_copies_share_them() -> None:
    matrix, _ = _random()
    first = matrix.csr(device="cpu", dtype=torch.float32)
    assert matrix.csr(device="cpu", dtype=torch.float32) is first
    assert matrix.csr(device="cpu", dtype=torch.float64) is not first
    assert copy.deepcopy(matrix) is matrix


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_order_of_the_transpose(symmetric: bool) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 9, (2, 30))
    relation = Relation.from_edges("r", *edges, n_genes=9, directed=not symmetric)
    matrix = SparseMatrix.of(relation)
    values = torch.arange(matrix.n_entries, dtype=torch.float64)
    a, t = (m.csr(device="cpu", dtype=torch.float64) for m in (matrix, matrix.transpose))
    with_values = torch.sparse_csr_tensor(
        a.crow_indices(), a.col_indices(), values, a.shape, check_invariants=True
    )
    turned = torch.sparse_csr_tensor(
        t.crow_indices(),
        t.col_indices(),
        values.index_select(0, matrix.transpose_order("cpu")),
        t.shape,
        check_invariants=True,
    )
    assert torch.equal(turned.to_dense(), with_values.to_dense().t())


def test_bad_input() -> None:
    matrix, _ = _random()
    with pytest.raises(InputError) as caught:
        product(matrix, torch.zeros(4, 1))
    assert caught.value.code == "bad-shape"
    for given in (([0, 1], [0, 1]), ([0, 1], [2]), ([0, 1], [0], [1, 2, 3])):
        with pytest.raises(InputError) as caught:
            SparseMatrix(*given, n_columns=2)
        assert caught.value.code == "bad-matrix"


def test_this_build_has_the_kernels() -> None:
    assert has_sparse_kernels("cpu", torch.float32)
    assert not has_sparse_kernels("cpu", torch.bfloat16)
