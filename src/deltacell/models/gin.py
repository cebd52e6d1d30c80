"""GIN, the graph isomorphism operator: all relations at once, or one with its gradient by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.models.base import StackedLinear, activation_of
from deltacell.propagate import MessageGradients, gradients_of

EPS = 1e-5
"""Added to a variance before its root is taken."""


class GIN(nn.Module):
    """The messages of r relations, ``m_r = act(norm(MLP_r((1 + eps_r) x + a_r)))``.

    a_r is what a gene received over the relation, eps_r is learned from 0, the MLP has activations
    between its linear layers, and the norm is over the numbers of one gene. Each relation has its
    own weights; the linear layers of all relations are one batched product.
    """

    def __init__(self, relations: int, hidden: int, linears: int, activation: str) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.eps = nn.Parameter(torch.zeros(relations))
        self.linears = nn.ModuleList(
            StackedLinear(relations, hidden, hidden) for _ in range(linears)
        )
        self.norm_weight = nn.Parameter(torch.ones(relations, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(relations, 1, hidden))

    def forward(self, x: Tensor, received: Tensor) -> Tensor:
        """Return [r, m, hidden] in fp32 or better for x [m, hidden], received [r, m, hidden]."""
        h = torch.addcmul(received, (1 + self.eps)[:, None, None], x)
        h = self.linears[0](h)
        for linear in self.linears[1:]:
            h = linear(self.activation(h))
        h = h.to(torch.promote_types(h.dtype, torch.float32))
        h = functional.layer_norm(h, h.shape[-1:])
        return self.activation(torch.addcmul(self.norm_bias, h, self.norm_weight))

    def of_relations(self) -> list[tuple[Tensor, ...]]:
        """Return the parameters of each relation, as views that pass gradients on."""
        stacked = [self.eps, self.norm_weight.squeeze(1), self.norm_bias.squeeze(1)]
        for linear in cast(Iterable[StackedLinear], self.linears):
            stacked += [linear.weight, linear.bias.squeeze(1)]
        return list(zip(*(p.unbind(0) for p in stacked), strict=True))


def gin_message(
    x: Tensor, received: Tensor, parameters: Sequence[Tensor], activation: str
) -> Tensor:
    """Return the message of one relation, [m, hidden], in fp32 or better; see `GIN`.

    The parameters are one of `GIN.of_relations`: eps, the norm's weight and bias, and weight
    [in, out] and bias of each linear layer.
    """
    act = activation_of(activation)
    eps, norm_weight, norm_bias, *linears = parameters
    h = torch.addmm(linears[1], torch.addcmul(received, 1 + eps, x), linears[0])
    for weight, bias in zip(linears[2::2], linears[3::2], strict=True):
        h = torch.addmm(bias, act(h), weight)
    h = h.to(torch.promote_types(h.dtype, torch.float32))
    return act(functional.layer_norm(h, h.shape[-1:], norm_weight, norm_bias, EPS))


def gin_message_gradients(
    x: Tensor,
    received: Tensor,
    parameters: Sequence[Tensor],
    activation: str,
    by_message: Tensor,
    out: Tensor | None = None,
) -> MessageGradients:
    """Return the gradients of `gin_message`, which is computed again, from that of the message.

    Most of a training step goes into this. Written out, it works in the same few pieces of memory
    over and over, which stay in cache, and takes three quarters of the time of automatic
    differentiation. Under autocast it is the automatic one. The gradient of what was received is
    written to ``out`` where given.
    """
    if torch.is_autocast_enabled(x.device.type) or x.dtype != received.dtype:
        with torch.enable_grad():
            x, received = x.detach().requires_grad_(), received.detach().requires_grad_()
            message = gin_message(x, received, parameters, activation)
        by_x, by_received, *others = gradients_of(message, [x, received, *parameters], by_message)
        return by_x, by_received, others
    with torch.no_grad():
        return _gradients_by_hand(x, received, parameters, activation, by_message, out)


def _gradients_by_hand(
    x: Tensor,
    received: Tensor,
    parameters: Sequence[Tensor],
    activation: str,
    by_message: Tensor,
    out: Tensor | None,
) -> MessageGradients:
    act, derivative = _IN_PLACE[activation]
    eps, norm_weight, norm_bias, *linears = parameters
    weights, biases = linears[::2], linears[1::2]
    n = len(weights)
    buffers = _buffers(2 * n, x)
    # The inputs and the outputs of each linear layer.
    before, after = buffers[:n], buffers[n:]
    torch.addcmul(received, 1 + eps, x, out=before[0])
    torch.addmm(biases[0], before[0], weights[0], out=after[0])
    for i in range(1, n):
        act(after[i - 1], before[i])
        torch.addmm(biases[i], before[i], weights[i], out=after[i])
    width = [x.shape[1]]
    normed, mean, rstd = torch.native_layer_norm(after[-1], width, norm_weight, norm_bias, EPS)
    by_normed = derivative(by_message, normed, normed)
    h, by_norm_weight, by_norm_bias = torch.ops.aten.native_layer_norm_backward(
        by_normed, after[-1], width, mean, rstd, norm_weight, norm_bias, [True] * 3
    )
    by_linears: list[Tensor | None] = []
    for i in reversed(range(1, n)):
        by_linears = [before[i].t() @ h, h.sum(0), *by_linears]
        h = derivative(torch.mm(h, weights[i].t(), out=after[i]), after[i - 1], after[i])
    by_linears = [before[0].t() @ h, h.sum(0), *by_linears]
    by_received = torch.mm(h, weights[0].t(), out=out)
    by_eps = torch.dot(by_received.flatten(), x.flatten())
    by_x = torch.addcmul(by_received, eps, by_received)
    return by_x, by_received, [by_eps, by_norm_weight, by_norm_bias, *by_linears]


class _Kept(threading.local):
    def __init__(self) -> None:
        self.by_type: dict[torch.dtype, Tensor] = {}


_KEPT = _Kept()


def _buffers(n: int, like: Tensor) -> list[Tensor]:
    """Return n tensors of the size of another; on a CPU, memory of this thread that is reused."""
    if like.device.type != "cpu":
        return list(like.new_empty(n, *like.shape))
    kept, size = _KEPT.by_type, n * like.numel()
    if like.dtype not in kept or len(kept[like.dtype]) < size:
        kept[like.dtype] = torch.empty(size, dtype=like.dtype)
    return list(kept[like.dtype][:size].view(n, *like.shape))


_ATEN = torch.ops.aten
_Act = Callable[[Tensor, Tensor], object]
_Derivative = Callable[[Tensor, Tensor, Tensor], Tensor]

# Each activation of x, and the gradient before it from the gradient after it, both written to out.
_IN_PLACE: Mapping[str, tuple[_Act, _Derivative]] = {
    "gelu": (
        lambda x, out: _ATEN.gelu.out(x, out=out),
        lambda g, x, out: _ATEN.gelu_backward.grad_input(g, x, grad_input=out),
    ),
    "relu": (
        lambda x, out: torch.clamp_min(x, 0, out=out),
        lambda g, x, out: _ATEN.threshold_backward.grad_input(g, x, 0, grad_input=out),
    ),
    "silu": (
        lambda x, out: _ATEN.silu.out(x, out=out),
        lambda g, x, out: _ATEN.silu_backward.grad_input(g, x, grad_input=out),
    ),
    "tanh": (
        lambda x, out: torch.tanh(x, out=out),
        lambda g, x, out: _ATEN.tanh_backward.grad_input(g, x.tanh(), grad_input=out),
    ),
}
