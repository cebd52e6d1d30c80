from __future__ import annotations

import pytest
import torch

from deltacell.models.activation import ACTIVATIONS
from deltacell.models.gin import GIN
from deltacell.models.gin_message import gin_message, gin_message_gradients
from deltacell.propagate import gradients_of


def inputs(linears: int, activation: str) -> tuple[GIN, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    gin = GIN(3, 8, linears, activation).double()
    with torch.no_grad():
        for parameter in gin.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(5, 8, dtype=torch.float64)
    return gin, x, torch.randn(3, 5, 8, dtype=torch.float64)


@pytest.mark.parametrize("linears", [1, 2, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_relation_by_relation_it_is_gin(linears: int, activation: str) -> None:
    gin, x, received = inputs(linears, activation)
    expected = gin(x, received)
    for k, parameters in enumerate(gin.of_relations()):
        message = gin_message(x, received[k], parameters, activation)
        torch.testing.assert_close(message, expected[k], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("linears", [1, 2, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_by_hand(linears: int, activation: str) -> None:
    gin, x, received = inputs(linears, activation)
    parameters = gin.of_relations()[1]
    by_message = torch.randn_like(x)
    x.requires_grad_()
    one = received[1].clone().requires_grad_()
    message = gin_message(x, one, parameters, activation)
    expected = gradients_of(message, [x, one, *parameters], by_message)
    out = torch.empty_like(x)
    # Twice: the second time in memory that is not fresh.
    for _ in range(2):
        by_x, by_received, others = gin_message_gradients(
            x, one, parameters, activation, by_message, out
        )
        for found, wanted in zip([by_x, by_received, *others], expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert by_received is not None
    assert by_received.data_ptr() == out.data_ptr()


def test_other_sizes_in_the_same_memory() -> None:
    gin, x, received = inputs(2, "gelu")
    parameters = gin.of_relations()[0]
    by = torch.randn(9, 8, dtype=torch.float64)
    more = torch.cat([x, x[:4]]), torch.cat([received[0], received[0, :4]])
    large = gin_message_gradients(*more, parameters, "gelu", by)[1]
    small = gin_message_gradients(x, received[0], parameters, "gelu", by[:5])[1]
    torch.testing.assert_close(large[:5], small, rtol=1e-12, atol=1e-12)


def test_under_autocast_the_gradient_is_that_of_what_was_computed() -> None:
    gin, x, received = inputs(2, "gelu")
    gin, x, received = gin.float(), x.float(), received.float()
    parameters = gin.of_relations()[0]
    by = torch.randn_like(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = gin_message_gradients(x, received[0], parameters, "gelu", by)
        own = x.clone().requires_grad_()
        message = gin_message(own, received[0], parameters, "gelu")
        expected = gradients_of(message, [own, *parameters], by)
    assert message.dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[2][3], expected[4])
    exact = gin_message_gradients(x, received[0], parameters, "gelu", by)[0]
    assert not torch.equal(exact, found[0])
