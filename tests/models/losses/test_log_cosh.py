"""log cosh: exact near 0, finite far away."""

from __future__ import annotations

import mpmath
import pytest
import torch

from deltacell import InputError
from deltacell.models import LogCosh, Prediction
from deltacell.models.losses import log_cosh


@pytest.mark.parametrize("x", [0.0, 1e-6, 1e-3, 0.3, 0.999999, 1.0, 1.000001, 5.0, 80.0, 1e6, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_slope(x: float, dtype: torch.dtype) -> None:
    for signed in (x, -x):
        t = torch.tensor(signed, dtype=dtype, requires_grad=True)
        y = log_cosh(t)
        y.backward()
        with mpmath.workdps(60):
            far = abs(mpmath.mpf(t.item())) - mpmath.log(2)
            exact = far if x > 1e5 else mpmath.log(mpmath.cosh(mpmath.mpf(t.item())))
        rtol = 1e-6 if dtype == torch.float32 else 1e-13
        assert y.item() == pytest.approx(float(exact), rel=rtol, abs=1e-30)
        assert t.grad is not None
        assert t.grad.item() == pytest.approx(float(mpmath.tanh(t.item())), rel=rtol)


def test_its_gradient_is_right() -> None:
    x = torch.tensor([-3.0, -0.5, 0.2, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_cosh, x)


def test_halves_are_computed_in_float32() -> None:
    assert log_cosh(torch.tensor([0.01]).bfloat16()).dtype == torch.float32


def test_the_loss_is_the_weighted_sum() -> None:
    prediction = Prediction(torch.tensor([1.0, 2.0]))
    targets = torch.tensor([0.5, 4.0])
    each = log_cosh(torch.tensor([0.5, -2.0]))
    loss = LogCosh()
    weighted = loss(prediction, targets, torch.tensor([0.25, 0.5]), epoch=0)
    torch.testing.assert_close(weighted.total, 0.25 * each[0] + 0.5 * each[1])
    torch.testing.assert_close(loss(prediction, targets, epoch=3).total, each.mean())
    assert set(weighted.parts) == {"log_cosh"}
    assert not weighted.parts["log_cosh"].requires_grad


def test_shapes_that_differ() -> None:
    prediction = Prediction(torch.zeros(2))
    with pytest.raises(InputError, match=r"2 scores, targets of shape \(3,\)"):
        LogCosh()(prediction, torch.zeros(3))
    with pytest.raises(InputError, match=r"weights of shape \(2, 1\)"):
        LogCosh()(prediction, torch.zeros(2), torch.zeros(2, 1))
