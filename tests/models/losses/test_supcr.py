"""SupCR: the sorted form is the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell import InputError
from deltacell.models.losses import supcr


def _naive(z: torch.Tensor, y: torch.Tensor, t: float) -> torch.Tensor:
    n = len(z)
    unit = z / z.norm(dim=1, keepdim=True)
    terms = []
    for i in range(n):
        for j in range(n):
            if j == i:
                continue
            far = [k for k in range(n) if k != i and abs(y[i] - y[k]) >= abs(y[i] - y[j])]
            similarity = [torch.exp(unit[i] @ unit[k] / t) for k in far]
            terms.append(-torch.log(torch.exp(unit[i] @ unit[j] / t) / sum(similarity)))
    return torch.stack(terms).mean()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=2, max_size=7),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 2**32),
)
def test_it_is_the_formula_with_ties(levels: list[int], t: float, seed: int) -> None:
    """Few different targets, so that many distances are equal."""
    torch.manual_seed(seed)
    z = torch.randn(len(levels), 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(levels, dtype=torch.float64)
    fast, slow = supcr(z, y, t), _naive(z, y, t)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(fast, z), torch.autograd.grad(slow, z), rtol=1e-8, atol=1e-10
    )


def test_without_ties() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(12, 4, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    torch.testing.assert_close(supcr(z, y, 0.2), _naive(z, y, 0.2))


def test_order_does_not_matter_and_order_of_vectors_pays() -> None:
    y = torch.linspace(0, 1, 20, dtype=torch.float64)
    circle = torch.stack([torch.cos(2 * y), torch.sin(2 * y)], dim=1)
    mixed = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(supcr(circle[mixed], y[mixed], 0.1), supcr(circle, y, 0.1))
    assert supcr(circle, y, 0.1) < 0.5 * supcr(circle[mixed], y, 0.1)


def test_too_few_vectors_give_0_with_a_gradient() -> None:
    for n in (0, 1):
        z = torch.randn(n, 3, requires_grad=True)
        loss = supcr(z, torch.zeros(n), 0.1)
        loss.backward()
        assert loss == 0


def test_it_is_float32_inside_autocast() -> None:
    z, y = torch.randn(6, 8), torch.randn(6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(supcr(z, y, 0.1), supcr(z, y, 0.1))
        cast = supcr(z, y, 0.1)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, supcr(z, y, 0.1))


def test_bad_shapes() -> None:
    with pytest.raises(InputError, match=r"\(4, 2\), targets of \(3,\)"):
        supcr(torch.zeros(4, 2), torch.zeros(3), 0.1)
