from typing import Any

import pytest
import torch

from deltacell.cell import Cell
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import STRATEGIES, Auto, Shared, strategy
from deltacell.propagate.auto import choose
from deltacell.screen import Genotypes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GENOTYPES = Genotypes.of([[i, i + 1, i + 2] for i in range(8)])


@pytest.fixture(scope="module")
def cell():
    return Cell.synthetic("demo")


def model_of(cell, auto="auto", **options):
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=16, layers=2, propagation=auto, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("late", "device", "max_bytes", "expected"),
    [
        (1, CPU, None, "late"),
        (1, CUDA, None, "late"),
        (1, CPU, 10**9, "delta"),
        (2, CPU, None, "delta"),
        (2, CUDA, None, "shared"),
        (2, CUDA, 10**9, "delta"),
    ],
)
def test_the_rule(cell, late, device, max_bytes, expected):
    assert choose(model_of(cell).hops(cell)[-late:], device, max_bytes) == expected


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"mutant_layers": 1}, "late"),
        ({"mutant_layers": 1, "metabolism": True}, "delta"),
        # As a resumed run has it.
        ({"mutant_layers": 1, "auto": Auto(None, "shared")}, "shared"),
    ],
)
def test_it_is_the_strategy_it_chose(cell, options, chosen):
    model = model_of(cell, **options)
    auto: Any = model.propagation
    with torch.no_grad():
        score = model(cell, GENOTYPES).score
        model.propagation = strategy(chosen)
        assert torch.equal(model(cell, GENOTYPES).score, score)
    assert auto.explain().startswith(chosen)


def test_strategies_by_name(refused):
    assert {name: strategy(name).name for name in STRATEGIES} == {n: n for n in STRATEGIES}
    assert strategy("shared", tile=2) == Shared(tile=2)
    refused("unknown-propagation", strategy, "fast")
