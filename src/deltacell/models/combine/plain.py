"""Combination of relations without parameters."""

from __future__ import annotations

import torch
from torch import nn


class SumCombination(nn.Module):
    """``x = sum_r m_r``."""

    def forward(self, messages: torch.Tensor) -> torch.Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        return messages.sum(0)


class MeanCombination(nn.Module):
    """``x = mean_r m_r``."""

    def forward(self, messages: torch.Tensor) -> torch.Tensor:
        """Return [m, hidden] for messages [r, m, hidden]."""
        return messages.mean(0)
