"""The logarithm of the hyperbolic cosine: quadratic near 0, linear far away."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from deltacell.models.losses.value import LossValue, checked_weights
from deltacell.models.prediction import Prediction


class LogCosh:
    """``sum over b of weight_b * log cosh(score_b - target_b)``."""

    def __call__(
        self,
        prediction: Prediction,
        targets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        epoch: int = 0,
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = checked_weights(prediction, targets, weights)
        total = (weights * log_cosh(prediction.score - targets)).sum()
        return LossValue(total, {"log_cosh": total.detach()})


def log_cosh(x: torch.Tensor) -> torch.Tensor:
    """Return ``log cosh(x)`` element by element, exact for tiny x and without overflow for any.

    ``log1p(2 sinh(x / 2)^2)`` up to 1, and ``|x| + log(1 + exp(-2 |x|)) - log 2`` beyond.
    Computed in float32, or in float64 where x is.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    near = torch.log1p(2 * torch.sinh(x.clamp(-1, 1) / 2).square())
    far = x.abs() + functional.softplus(-2 * x.abs()) - math.log(2)
    return torch.where(x.abs() <= 1, near, far)
