"""The reconstruction loss: its fallback, its precision, and what it never forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from deltacell import InputError, Relation
from deltacell.models.reconstruction import (
    Reconstruction,
    ReconstructionLoss,
    closed_form_loss,
    dense_loss,
)
from deltacell.propagate.product import SparseMatrix

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _relation(n: int, edges: int, *, directed: bool = False, seed: int = 0) -> Relation:
    pairs = np.random.default_rng(seed).integers(0, n, (2, edges))
    return Relation.from_edges("r", *pairs, n_genes=n, directed=directed)


def _inputs(n: int, hidden: int, dtype: torch.dtype = torch.float64) -> Inputs:
    torch.manual_seed(1)
    z, weight, bias = torch.randn(n, hidden), torch.randn(n, hidden), torch.randn(n)
    return tuple(t.to(dtype).requires_grad_() for t in (z, weight, bias))  # type: ignore[return-value]


@pytest.fixture(params=["kernels", "gathering"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways the sums over edges are computed; small parts, so that there are several."""
    if request.param == "gathering":
        module = "deltacell.models.reconstruction"
        monkeypatch.setattr(f"{module}.has_sparse_kernels", lambda *_: False)
        monkeypatch.setattr(f"{module}.GATHERED_ENTRIES", 7)
    return str(request.param)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("lambda_", [0.0, 0.1, 1.0, 2.5])
def test_it_equals_the_dense_loss_with_its_gradients(
    way: str, lambda_: float, directed: bool
) -> None:
    matrix = SparseMatrix.of(_relation(11, 40, directed=directed))
    inputs = _inputs(11, 4)
    closed, dense = (f(*inputs, matrix, lambda_) for f in (closed_form_loss, dense_loss))
    torch.testing.assert_close(closed, dense, rtol=1e-12, atol=0)
    for mine, plain in zip(
        torch.autograd.grad(closed, inputs), torch.autograd.grad(dense, inputs), strict=True
    ):
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(closed_form_loss(*inputs, matrix, lambda_), dense.detach())


@pytest.mark.parametrize("lambda_", [0.1, 1.0])
def test_its_gradients_are_right(way: str, lambda_: float) -> None:
    matrix = SparseMatrix.of(_relation(6, 14, directed=True))
    assert gradcheck(lambda *t: closed_form_loss(*t, matrix, lambda_), _inputs(6, 3))


def test_a_network_without_edges(way: str) -> None:
    matrix = SparseMatrix.of(_relation(5, 0))
    inputs = _inputs(5, 3)
    for lambda_ in (0.1, 1.0):
        closed, dense = (f(*inputs, matrix, lambda_) for f in (closed_form_loss, dense_loss))
        torch.testing.assert_close(closed, dense)
        torch.testing.assert_close(
            torch.autograd.grad(closed, inputs), torch.autograd.grad(dense, inputs)
        )


@pytest.mark.parametrize("lambda_", [0.1, 1.0])
def test_float32_agrees_with_float64(lambda_: float) -> None:
    matrix = SparseMatrix.of(_relation(800, 40_000))
    exact = closed_form_loss(*_inputs(800, 16), matrix, lambda_)
    single = closed_form_loss(*_inputs(800, 16, torch.float32), matrix, lambda_)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=0)


def test_it_is_float32_inside_autocast() -> None:
    matrix = SparseMatrix.of(_relation(50, 300))
    inputs = _inputs(50, 8, torch.float32)
    plain = closed_form_loss(*inputs, matrix, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        cast = closed_form_loss(*inputs, matrix, 0.1)
        halves = closed_form_loss(inputs[0].bfloat16(), *inputs[1:], matrix, 0.1)
    assert torch.equal(cast, plain)
    assert halves.dtype == torch.float32
    halves.backward()
    assert inputs[0].grad is not None


def test_no_matrix_of_all_pairs_is_ever_formed() -> None:
    n = 1_000
    matrix = SparseMatrix.of(_relation(n, 700))
    inputs = _inputs(n, 4, torch.float32)

    def largest_allocation(loss: ReconstructionLoss) -> int:
        with torch.profiler.profile(profile_memory=True) as profiler:
            torch.stack([loss(*inputs, matrix, value) for value in (0.1, 1.0)]).sum().backward()
        return max(event.cpu_memory_usage for event in profiler.events())

    all_pairs = 4 * n * n
    assert largest_allocation(dense_loss) >= all_pairs
    assert largest_allocation(closed_form_loss) < all_pairs / 10


def test_nothing_as_long_as_the_edges_is_kept_for_the_backward() -> None:
    matrix = SparseMatrix.of(_relation(40, 700))
    kept: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        closed_form_loss(*_inputs(40, 4, torch.float32), matrix, 0.1)
    assert max(kept) == 40 * 4 < matrix.n_entries


def test_heads_start_as_the_specification_says() -> None:
    heads = Reconstruction(2_000, 16, {"a": 1.0}).heads
    weight = heads[0].weight.detach()
    assert float(weight.std()) == pytest.approx(0.1, rel=0.02)
    assert weight.shape == (2_000, 16)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"lambda of the network 'a' is -1"):
        Reconstruction(4, 2, {"a": -1})
    relation = Relation.from_edges("w", [0], [1], [0.3], n_genes=3, directed=False)
    with pytest.raises(InputError, match="without weights"):
        closed_form_loss(*_inputs(3, 2), SparseMatrix.of(relation, weighted=True), 1.0)
