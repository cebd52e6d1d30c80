from __future__ import annotations

import torch
from torch.nn import functional

from deltacell.models.gin import GIN


def test_gin_is_its_formula() -> None:
    torch.manual_seed(0)
    gin = GIN(3, 4, 3, "gelu")
    with torch.no_grad():
        for parameter in gin.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    x, received = torch.randn(5, 4), torch.randn(3, 5, 4)
    for r in range(3):
        h = (1 + gin.eps[r]) * x + received[r]
        for i, linear in enumerate(gin.linears):
            h = functional.gelu(h) if i else h
            h = h @ linear.weight[r] + linear.bias[r]
        h = functional.layer_norm(h, (4,), gin.norm_weight[r, 0], gin.norm_bias[r, 0])
        torch.testing.assert_close(gin(x, received)[r], functional.gelu(h))
