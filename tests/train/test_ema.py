"""The average of weights is the formula's, and lends itself out only for a while."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deltacell.errors import InputError
from deltacell.train.task import Ema


def test_average_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    ema = Ema(model, 0.6)
    expected = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step in range(12):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        ema.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        for name, weight in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * weight.detach()
    assert (1 + 11) / (10 + 11) < 0.6 < (1 + 20) / (10 + 20)
    for name, average in ema.average.items():
        torch.testing.assert_close(average, expected[name], rtol=1e-12, atol=1e-12)


def test_decay_is_bounded_by_what_was_asked_for() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    ema = Ema(model, 0.5)
    nn.init.ones_(model.weight)
    ema.update(10_000)
    assert float(ema.average["weight"]) == 0.5


def test_in_place_gives_the_average_and_takes_it_back_even_after_an_error() -> None:
    model = nn.Linear(2, 1)
    ema = Ema(model, 0.9)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    own = model.weight.detach().clone()

    def fail() -> None:
        with ema.in_place():
            assert torch.equal(model.weight, before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model.weight, own)
    assert torch.equal(ema.average["weight"], before)


def test_state_is_carried_over() -> None:
    first, second = Ema(nn.Linear(2, 1), 0.9), Ema(nn.Linear(2, 1), 0.9)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.average["weight"], second.average["weight"])
    assert first.average["weight"] is not second.average["weight"]


@pytest.mark.parametrize("decay", [1.0, -0.1, 1.5])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(InputError, match=f"trainer.ema is {decay}"):
        Ema(nn.Linear(1, 1), decay)
