from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import random_array

import deltacell.propagate.product as product_module
import deltacell.propagate.shared as aggregate_module
from deltacell.propagate.hop import Aggregate
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.shared import Scales, aggregate


@pytest.fixture
def aggregates() -> list[Aggregate]:
    rng = np.random.default_rng(0)

    def matrix(n_columns: int, density: float) -> SparseMatrix:
        drawn = random_array((5, n_columns), density=density, rng=rng, format="csr")
        return SparseMatrix.from_scipy(drawn)

    return [
        Aggregate("gene", matrix(4, 0.5)),
        Aggregate("reaction", matrix(3, 0.6)),
        Aggregate("gene", matrix(4, 0.4)),
        Aggregate("gene", matrix(4, 0.0)),
    ]


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "gene": torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True),
        "reaction": torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True),
    }


def scales_of(aggregates: list[Aggregate]) -> Scales:
    torch.manual_seed(1)
    return (None, torch.rand(5, 2, dtype=torch.float64), None, None)[: len(aggregates)]


def plain(
    aggregates: list[Aggregate], state: dict[str, torch.Tensor], scales: Scales
) -> torch.Tensor:
    found = []
    for a, scale in zip(aggregates, scales, strict=True):
        dense = a.matrix.csr(device="cpu", dtype=torch.float64).to_dense()
        total = torch.einsum("ij,jth->ith", dense, state[a.source])
        found.append(total if scale is None else total * scale.unsqueeze(-1))
    return torch.stack(found)


@pytest.mark.parametrize("kernels", [True, False])
def test_equals_dense_products(
    aggregates: list[Aggregate],
    state: dict[str, torch.Tensor],
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for where in (aggregate_module, product_module):
        monkeypatch.setattr(where, "has_sparse_kernels", lambda *_: kernels, raising=False)
    scales = scales_of(aggregates)
    found, expected = aggregate(aggregates, state, scales), plain(aggregates, state, scales)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), list(state.values())),
        torch.autograd.grad((expected * weights).sum(), list(state.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients(aggregates: list[Aggregate], state: dict[str, torch.Tensor]) -> None:
    scales = scales_of(aggregates)

    def of(gene: torch.Tensor, reaction: torch.Tensor) -> torch.Tensor:
        return aggregate(aggregates, {"gene": gene, "reaction": reaction}, scales).square()

    assert torch.autograd.gradcheck(of, tuple(state.values()))
    assert torch.autograd.gradgradcheck(of, tuple(state.values()))


def test_what_was_in_memory_does_not_matter(
    aggregates: list[Aggregate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products write to memory that was not cleared; a NaN there must not be read."""
    x = torch.ones(4, 1, 3)
    expected = aggregate(aggregates[:1], {"gene": x}, (None,))
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, *size, **options: self.new_full(size, float("nan"), **options),
    )
    torch.testing.assert_close(aggregate(aggregates[:1], {"gene": x}, (None,)), expected)


def test_stays_in_single_precision_under_autocast(aggregates: list[Aggregate]) -> None:
    x = torch.randn(4, 1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = aggregate(aggregates[:1], {"gene": x}, (None,))
    assert found.dtype == torch.float32
    assert torch.equal(found, aggregate(aggregates[:1], {"gene": x}, (None,)))
    of_half = aggregate(aggregates[:1], {"gene": x.bfloat16()}, (None,))
    assert of_half.dtype == torch.float32
