from __future__ import annotations

import pytest
import torch

from deltacell.errors import InputError
from deltacell.propagate import STRATEGIES, Shared, strategy
from deltacell.propagate.shared import _Zeroed


def test_strategies_by_name() -> None:
    assert {name: strategy(name).name for name in STRATEGIES} == {n: n for n in STRATEGIES}
    assert strategy("shared", tile=2) == Shared(tile=2)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown propagation 'fast'; there are shared, delta"):
        strategy("fast")


def test_options_of_another_strategy() -> None:
    with pytest.raises(InputError, match=r"'dense' does not take these options.*tile"):
        strategy("dense", tile=2)


@pytest.mark.parametrize("options", [{"tile": 0}, {"rows_at_a_time": -1}])
def test_sizes_that_make_no_sense(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected"):
        Shared(**options)


def test_gradients_of_zeroed_rows() -> None:
    nodes, owner = torch.tensor([0, 3, 3]), torch.tensor([1, 0, 1])
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)

    def of(x: torch.Tensor) -> torch.Tensor:
        return _Zeroed.apply(x, nodes, owner).square()

    assert (of(x)[nodes, owner] == 0).all()
    assert torch.autograd.gradcheck(of, (x,))
    assert torch.autograd.gradgradcheck(of, (x,))
