"""The message of a relation, and its gradient written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from deltacell.propagate.hop import Aggregate, Message
from deltacell.propagate.parallel.chunks import Rows
from deltacell.propagate.parallel.graphs import Gradients, gradients_of

EPS = 1e-5  # added to a variance before its root is taken

GinFunction = Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class GinMessage(Message):
    """``m_i = act(norm(MLP((1 + eps) x_i + a_i)))`` over one relation, see `gin_message`.

    Attributes
    ----------
    aggregates
        The one aggregate over the relation.
    parameters
        Those of `gin_message`.
    kept
        The dropout of this step, 0 or ``1 / (1 - rate)``, [genes, hidden]; None without dropout.
    factor
        What the message is multiplied by.
    function
        `gin_message`, or what it was compiled to.
    """

    aggregates: tuple[Aggregate]
    parameters: tuple[Tensor, ...]
    kept: Tensor | None
    factor: float
    function: GinFunction

    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the messages [m, hidden] to some genes."""
        return self._weighted(rows, self.function(vectors, received[0], self.parameters))

    def backward(
        self,
        rows: Rows,
        vectors: Tensor,
        received: Sequence[Tensor],
        gradient: Tensor,
    ) -> Gradients:
        """Return the gradients of the vectors, the aggregate and the parameters."""
        by_message = self._weighted(rows, gradient)
        return gin_message_gradients(vectors, received[0], self.parameters, by_message)

    def _weighted(self, rows: Rows, x: Tensor) -> Tensor:
        if self.kept is not None:
            kept = self.kept[rows] if isinstance(rows, slice) else self.kept.index_select(0, rows)
            x = x * kept
        return x if self.factor == 1 else x * self.factor


def gin_message(x: Tensor, received: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the message of one relation, [m, hidden], in fp32 or better.

    With W_k and b_k the weights [in, out] and bias of linear layer k,
    ``h_1 = ((1 + eps) x + a) W_1 + b_1``, ``h_k = gelu(h_(k-1)) W_k + b_k``, and the message is
    ``gelu(norm(h_n))``. The norm is a layer norm of each row. The parameters are eps, the norm's
    weight and bias, and weight and bias of each linear layer.
    """
    if x.dtype == torch.float64:
        parameters = [p.double() for p in parameters]
    eps, norm_weight, norm_bias, *linears = parameters
    h = torch.addmm(linears[1], torch.addcmul(received, 1 + eps, x), linears[0])
    for weight, bias in zip(linears[2::2], linears[3::2], strict=True):
        h = torch.addmm(bias, functional.gelu(h), weight)
    h = h.to(torch.promote_types(h.dtype, torch.float32))
    return functional.gelu(functional.layer_norm(h, h.shape[-1:], norm_weight, norm_bias, EPS))


@torch.no_grad()
def gin_message_gradients(
    x: Tensor,
    received: Tensor,
    parameters: Sequence[Tensor],
    by_message: Tensor,
) -> Gradients:
    """Return the gradients of x, received and the parameters from that of the `gin_message`.

    The message is computed again. Most of a training step is spent here; with buffers that stay in
    cache, it takes three quarters of the time of automatic differentiation.
    """
    has_one_dtype = x.dtype == received.dtype == parameters[0].dtype
    if not has_one_dtype or torch.is_autocast_enabled(x.device.type):
        return _automatic_gradients(x, received, parameters, by_message)
    eps, norm_weight, norm_bias, *linears = parameters
    layers = _Linears(linears[::2], linears[1::2])
    layers.compute(x, received, 1 + eps)
    h, *by_norm = _norm_gradients(layers.outputs[-1], norm_weight, norm_bias, by_message)
    by_received, by_linears = layers.gradients(h)
    by_x = torch.addcmul(by_received, eps, by_received)
    by_eps = torch.dot(by_received.flatten(), x.flatten())
    return [by_x, by_received, by_eps, *by_norm, *by_linears]


def _automatic_gradients(
    x: Tensor,
    received: Tensor,
    parameters: Sequence[Tensor],
    by_message: Tensor,
) -> Gradients:
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_(), received.detach().requires_grad_()]
        message = gin_message(inputs[0], inputs[1], parameters)
    return gradients_of([message], [*inputs, *parameters], [by_message])


_act = torch.ops.aten.gelu.out
_act_gradient = torch.ops.aten.gelu_backward.grad_input


class _Linears:
    """Linear layers with activations between, whose inputs and outputs are kept in one buffer."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self._weights = weights
        self._biases = biases
        self.inputs: Tensor
        self.outputs: Tensor  # [layers, m, hidden]

    def compute(self, x: Tensor, received: Tensor, factor: Tensor) -> None:
        """Compute all layers from the input of the first, ``received + factor * x``."""
        n = len(self._weights)
        self.inputs, self.outputs = x.new_empty(2, n, *x.shape).unbind()
        torch.addcmul(received, factor, x, out=self.inputs[0])
        torch.addmm(self._biases[0], self.inputs[0], self._weights[0], out=self.outputs[0])
        for i in range(1, n):
            _act(self.outputs[i - 1], out=self.inputs[i])
            torch.addmm(self._biases[i], self.inputs[i], self._weights[i], out=self.outputs[i])

    def gradients(self, by_output: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the first input, and of weight and bias of each layer.

        The outputs are overwritten.
        """
        by_linears: list[Tensor] = []
        for i in reversed(range(len(self._weights))):
            by_linears = [self.inputs[i].t() @ by_output, by_output.sum(0), *by_linears]
            if i:
                torch.mm(by_output, self._weights[i].t(), out=self.outputs[i])
                by_output = _act_gradient(
                    self.outputs[i],
                    self.outputs[i - 1],
                    grad_input=self.outputs[i],
                )
        return torch.mm(by_output, self._weights[0].t()), by_linears


def _norm_gradients(
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    by_message: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of h, weight and bias from that of ``gelu(layer_norm(h))``."""
    width = [h.shape[1]]
    normed, mean, rstd = torch.native_layer_norm(h, width, weight, bias, EPS)
    by_normed = _act_gradient(by_message, normed, grad_input=normed)
    by_h, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        by_normed,
        h,
        width,
        mean,
        rstd,
        weight,
        bias,
        [True] * 3,
    )
    return by_h, by_weight, by_bias
