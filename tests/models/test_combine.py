from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from deltacell.models.combine import AttentionCombination, PairwiseCombination


@pytest.mark.parametrize("relations", [1, 2, 5, 9])
def test_pairwise_is_an_mlp_of_its_own_for_every_pair(relations: int) -> None:
    torch.manual_seed(0)
    hidden = 8
    combine = PairwiseCombination(relations, hidden, "gelu").double()
    messages = torch.randn(relations, 6, hidden, dtype=torch.float64, requires_grad=True)
    pairs = [(a, b) for a in range(relations) for b in range(a, relations)]
    assert list(combine.pairs) == pairs
    of_a_pair = 2 * hidden * 32 + 32 + 32 * hidden + hidden
    shared = hidden * 32 + 32 + 33 + 2 * hidden
    assert sum(p.numel() for p in combine.parameters()) == len(pairs) * of_a_pair + shared
    places = combine.project.view(relations, hidden, relations + 1, 32)
    options = []
    for p, (a, b) in enumerate(pairs):
        left = places[a, :, b - a]
        right = places[b, :, relations - b + a]
        both = torch.cat([messages[a], messages[b]], -1)
        inner = functional.gelu(both @ torch.cat([left, right]) + combine.project_bias[p])
        options.append(inner @ combine.expand.weight[p] + combine.expand.bias[p])
    options.append(messages.mean(0))
    stacked = torch.stack(options)
    score = combine.score_out(functional.gelu(combine.score(stacked)))
    expected = combine.norm((score.softmax(0) * stacked).sum(0))
    found = combine(messages)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    leaves = [messages, *combine.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_attention_is_pytorch_s() -> None:
    torch.manual_seed(0)
    combine = AttentionCombination(5, 8).double()
    theirs = nn.MultiheadAttention(8, 4, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(combine.query_key_value.weight)
        theirs.in_proj_bias.copy_(combine.query_key_value.bias)
        theirs.out_proj.load_state_dict(combine.out.state_dict())
    messages = torch.randn(5, 6, 8, dtype=torch.float64)
    rows = (messages + combine.relation).transpose(0, 1)
    expected = theirs(rows, rows, rows, need_weights=False)[0].mean(1)
    torch.testing.assert_close(combine(messages), expected)
