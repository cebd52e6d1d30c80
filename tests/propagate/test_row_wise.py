from __future__ import annotations

import pytest
import torch
from torch import nn

from deltacell.propagate.hop import Hop, Rows
from deltacell.propagate.shared import row_wise


class Update(nn.Module):
    """Of a row and what it received, with a constant of its own for every node."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3).double()
        self.unused = nn.Parameter(torch.zeros(1))
        self.shift = torch.randn(7, 1, 3, dtype=torch.float64)

    def update(self, vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
        both = torch.cat([vectors, aggregated.sum(0)], -1).to(self.linear.weight.dtype)
        new = self.linear(both).tanh()
        return new * self.shift[rows].to(new)


@pytest.fixture
def update() -> Update:
    return Update()


def hop_of(update: Update) -> Hop:
    return Hop("gene", (), update.update, tuple(update.parameters()))


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    vectors = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    return vectors, torch.randn(2, 7, 2, 3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("rows_at_a_time", [1, 4, 6, 100])
def test_pieces_change_nothing(update: Update, rows_at_a_time: int) -> None:
    hop, (vectors, aggregated) = hop_of(update), inputs()
    leaves = [vectors, aggregated, *update.linear.parameters()]
    whole = row_wise(hop, vectors, aggregated, None)
    pieces = row_wise(hop, vectors, aggregated, rows_at_a_time)
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(whole)
    for a, b in zip(
        torch.autograd.grad((pieces * weights).sum(), leaves),
        torch.autograd.grad((whole * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients(update: Update) -> None:
    def of(vectors: torch.Tensor, aggregated: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return row_wise(hop_of(update), vectors, aggregated, 4)

    assert torch.autograd.gradcheck(of, (*inputs(), *update.linear.parameters()))


def test_only_what_wants_a_gradient_gets_one(update: Update) -> None:
    vectors, aggregated = inputs()
    update.linear.bias.requires_grad_(False)
    row_wise(hop_of(update), vectors.detach(), aggregated, 4).sum().backward()
    assert vectors.grad is None
    assert aggregated.grad is not None
    assert update.linear.weight.grad is not None
    assert update.linear.bias.grad is None
    assert update.unused.grad is None


def test_nothing_between_is_kept(update: Update) -> None:
    """Besides the parameters, only the arguments are saved for the backward."""
    vectors, aggregated = inputs()
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        row_wise(hop_of(update), vectors, aggregated, 4)
    kept = sum(t.numel() for t in saved)
    assert kept == sum(t.numel() for t in (vectors, aggregated, *update.parameters()))


def test_the_backward_computes_again_under_the_same_autocast(update: Update) -> None:
    update.float()
    seen: list[torch.dtype] = []

    def update_seen(vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
        new = update.linear(torch.cat([vectors, aggregated.sum(0)], -1))
        seen.append(new.dtype)
        return new

    hop = Hop("gene", (), update_seen, tuple(update.parameters()))
    vectors, aggregated = (t.detach().float().requires_grad_() for t in inputs())
    with torch.autocast("cpu", torch.bfloat16):
        new = row_wise(hop, vectors, aggregated, 100)
    new.sum().backward()
    assert new.dtype == torch.float32
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert update.linear.weight.grad is not None
    assert update.linear.weight.grad.abs().sum() > 0
