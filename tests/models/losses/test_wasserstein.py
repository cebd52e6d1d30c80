"""The Wasserstein distance of two samples."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from deltacell import InputError
from deltacell.models.losses import wasserstein


def test_it_is_the_cheapest_of_all_plans() -> None:
    torch.manual_seed(0)
    for n in range(1, 6):
        x, y = torch.randn(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
        costs = [(x - y[list(p)]).square().mean() / 2 for p in permutations(range(n))]
        torch.testing.assert_close(wasserstein(x, y), torch.stack(costs).min())


def test_a_sample_is_at_distance_0_from_itself_in_any_order() -> None:
    x = torch.randn(9)
    assert wasserstein(x, x.flip(0)) == 0
    assert wasserstein(torch.zeros(0), torch.zeros(0)) == 0
    torch.testing.assert_close(wasserstein(x + 2, x), torch.tensor(2.0))


def test_its_gradient_is_right() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: wasserstein(x, torch.arange(5.0).double()), x)


def test_samples_of_different_sizes() -> None:
    with pytest.raises(InputError, match=r"\(2,\) and \(3,\)"):
        wasserstein(torch.zeros(2), torch.zeros(3))
