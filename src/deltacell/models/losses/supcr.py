"""SupCR: supervised contrast for regression."""

from __future__ import annotations

import torch
from torch.nn import functional

from deltacell.errors import InputError


def supcr(z: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return how badly the similarity of vectors follows the nearness of their targets.

    For an anchor i and a partner j != i, ``-log(exp(s_ij / t) / sum of exp(s_ik / t))`` over the
    k != i with ``|y_i - y_k| >= |y_i - y_j|``, with s the cosine similarity; averaged over all
    i != j. Of fewer than two vectors it is 0. By sorting each anchor's distances and a running
    log-sum-exp, in O(n^2 log n). Computed in float32, or in float64 where z is.

    Parameters
    ----------
    z
        [n, width].
    y
        [n].
    temperature
        t, above 0.
    """
    n = len(z)
    if y.shape != (n,) or z.dim() != 2:
        raise InputError(f"vectors of shape {tuple(z.shape)}, targets of {tuple(y.shape)}")
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        unit = functional.normalize(z.to(dtype), dim=1)
        if n < 2:
            return unit.sum() * 0
        logits = unit @ unit.t() / temperature
        nearness = -(y.unsqueeze(1) - y).abs()
        # The anchor itself comes last and is cut off.
        nearness.fill_diagonal_(torch.inf)
        nearness, order = nearness.sort(dim=1)
        nearness, order = nearness[:, :-1].contiguous(), order[:, :-1]
        logits = logits.gather(1, order)
        farther = logits.logcumsumexp(1)
        # Partners at the same distance count for each other: take the sum up to the last of them.
        last = torch.searchsorted(nearness, nearness, right=True) - 1
        return (farther.gather(1, last) - logits).mean()
