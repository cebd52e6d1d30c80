"""The Wasserstein distance between two samples of numbers."""

from __future__ import annotations

import torch

from deltacell.errors import InputError


def wasserstein(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the least cost of moving one sample onto the other, ``|x - y|^2 / 2`` a unit.

    In one dimension the best plan keeps the order: ``mean of (sorted x - sorted y)^2 / 2``. Of
    empty samples it is 0. Computed in float32, or in float64 where x is.

    Parameters
    ----------
    x, y
        [n].
    """
    if x.shape != y.shape or x.dim() != 1:
        raise InputError(f"two samples of shapes {tuple(x.shape)} and {tuple(y.shape)}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    difference = x.to(dtype).sort().values - y.to(dtype).sort().values
    return difference.square().sum() / (2 * max(1, len(x)))
