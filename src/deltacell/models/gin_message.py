"""GIN's message over one relation, and its gradient written out by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch.nn import functional

from deltacell.models.activation import activation_of
from deltacell.propagate import MessageGradients, gradients_of

EPS = 1e-5
"""What is added to a variance before its root is taken."""


def gin_message(
    x: torch.Tensor, received: torch.Tensor, parameters: Sequence[torch.Tensor], activation: str
) -> torch.Tensor:
    """Return ``act(norm(MLP((1 + eps) x + a)))``, [m, hidden], in fp32 or better.

    Parameters
    ----------
    x, received
        The genes' vectors, and what they received over the relation, both [m, hidden].
    parameters
        eps, the norm's weight and bias, and weight [in, out] and bias of each linear layer.
    activation
        One of `ACTIVATIONS`.
    """
    act = activation_of(activation)
    eps, norm_weight, norm_bias, *linears = parameters
    h = torch.addmm(linears[1], torch.addcmul(received, 1 + eps, x), linears[0])
    for weight, bias in zip(linears[2::2], linears[3::2], strict=True):
        h = torch.addmm(bias, act(h), weight)
    h = h.to(torch.promote_types(h.dtype, torch.float32))
    return act(functional.layer_norm(h, h.shape[-1:], norm_weight, norm_bias, EPS))


def gin_message_gradients(
    x: torch.Tensor,
    received: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    activation: str,
    by_message: torch.Tensor,
    out: torch.Tensor | None = None,
) -> MessageGradients:
    """Return the gradients of `gin_message`, which is computed again.

    Most of a training step goes into this. Written out, it works in the same few pieces of memory
    over and over, which stay in cache, and takes three quarters of the time of automatic
    differentiation. Under autocast it is the automatic one.

    Parameters
    ----------
    x, received, parameters, activation
        As in `gin_message`.
    by_message
        The gradient of the messages, [m, hidden].
    out
        Where to put the gradient of what was received.
    """
    if torch.is_autocast_enabled(x.device.type) or x.dtype != received.dtype:
        return _automatic(x, received, parameters, activation, by_message)
    with torch.no_grad():
        return _by_hand(x, received, parameters, activation, by_message, out)


def _by_hand(
    x: torch.Tensor,
    received: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    activation: str,
    by_message: torch.Tensor,
    out: torch.Tensor | None,
) -> MessageGradients:
    act, derivative = _ACT_OUT[activation], _DERIVATIVES[activation]
    eps, norm_weight, norm_bias, *linears = parameters
    weights, biases = linears[::2], linears[1::2]
    n = len(weights)
    buffers = _buffers(2 * n, x)
    # What goes into each linear layer, and what comes out of it.
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
    by_linears: list[torch.Tensor | None] = []
    for i in reversed(range(1, n)):
        by_linears = [before[i].t() @ h, h.sum(0), *by_linears]
        h = derivative(torch.mm(h, weights[i].t(), out=after[i]), after[i - 1], after[i])
    by_linears = [before[0].t() @ h, h.sum(0), *by_linears]
    by_received = torch.mm(h, weights[0].t(), out=out)
    by_eps = torch.dot(by_received.flatten(), x.flatten())
    by_x = torch.addcmul(by_received, eps, by_received)
    return by_x, by_received, [by_eps, by_norm_weight, by_norm_bias, *by_linears]


def _automatic(
    x: torch.Tensor,
    received: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    activation: str,
    by_message: torch.Tensor,
) -> MessageGradients:
    with torch.enable_grad():
        x, received = x.detach().requires_grad_(), received.detach().requires_grad_()
        message = gin_message(x, received, parameters, activation)
    by_x, by_received, *others = gradients_of(message, [x, received, *parameters], by_message)
    assert by_x is not None
    assert by_received is not None
    return by_x, by_received, others


class _Kept(threading.local):
    """Memory of one thread, by type."""

    def __init__(self) -> None:
        self.by_type: dict[torch.dtype, torch.Tensor] = {}


_KEPT = _Kept()


def _buffers(n: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Return n tensors of the size of another; on a CPU, each thread's own, used again."""
    if like.device.type != "cpu":
        return list(like.new_empty(n, *like.shape))
    kept, size = _KEPT.by_type, n * like.numel()
    if like.dtype not in kept or len(kept[like.dtype]) < size:
        kept[like.dtype] = torch.empty(size, dtype=like.dtype)
    return list(kept[like.dtype][:size].view(n, *like.shape))


_ATEN = torch.ops.aten

_ACT_OUT: Mapping[str, Callable[[torch.Tensor, torch.Tensor], object]] = MappingProxyType(
    {
        "gelu": lambda x, out: _ATEN.gelu.out(x, out=out),
        "relu": lambda x, out: torch.clamp_min(x, 0, out=out),
        "silu": lambda x, out: _ATEN.silu.out(x, out=out),
        "tanh": lambda x, out: torch.tanh(x, out=out),
    }
)
"""Each activation of x, put to a given place."""

_DERIVATIVES: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = (
    MappingProxyType(
        {
            "gelu": lambda g, x, out: _ATEN.gelu_backward.grad_input(g, x, grad_input=out),
            "relu": lambda g, x, out: _ATEN.threshold_backward.grad_input(g, x, 0, grad_input=out),
            "silu": lambda g, x, out: _ATEN.silu_backward.grad_input(g, x, grad_input=out),
            "tanh": lambda g, x, out: _ATEN.tanh_backward.grad_input(g, x.tanh(), grad_input=out),
        }
    )
)
"""From the gradient after an activation of x to that before, put to a given place."""
