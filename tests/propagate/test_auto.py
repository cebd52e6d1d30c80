from __future__ import annotations

import json

import pytest
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Auto, Choice, Delta, Late, Shared
from deltacell.propagate.auto import choose
from deltacell.screen import Genotypes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GENOTYPES = Genotypes.of([[i, i + 1, i + 2] for i in range(8)])


@pytest.fixture(scope="module")
def cell() -> Cell:
    return Cell.synthetic("demo")


def model_of(cell: Cell, auto: Auto | str = "auto", **options: object) -> HeteroCell:
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
def test_the_rule(
    cell: Cell, late: int, device: torch.device, max_bytes: int | None, expected: str
) -> None:
    hops = model_of(cell).hops(cell)[-late:]
    assert choose(hops, device, max_bytes).strategy == expected


def test_one_layer_with_metabolism_is_more_than_one_hop(cell: Cell) -> None:
    model = model_of(cell, metabolism=True, mutant_layers=1)
    model.prepare(cell, GENOTYPES)
    assert isinstance(model.propagation, Auto)
    assert model.propagation.choice is not None
    assert model.propagation.choice.strategy == "delta"


@pytest.mark.parametrize(("layers", "same"), [(1, Late()), (2, Delta())])
def test_it_is_the_strategy_it_chose(cell: Cell, layers: int, same: Delta | Late) -> None:
    model = model_of(cell, mutant_layers=layers)
    auto = model.propagation
    assert isinstance(auto, Auto)
    assert auto.choice is None
    assert "yet" in auto.explain()
    with torch.no_grad():
        score = model(cell, GENOTYPES).score
        model.propagation = same
        assert torch.equal(model(cell, GENOTYPES).score, score)
    assert auto.choice is not None
    assert auto.explain().startswith(same.name)


def test_a_recorded_choice_is_kept(cell: Cell) -> None:
    recorded = json.loads(json.dumps(Auto(None, Choice("shared", "said before.")).to_json()))
    model = model_of(cell, Auto.from_json(recorded), mutant_layers=1)
    with torch.no_grad():
        score = model(cell, GENOTYPES).score
        assert isinstance(model.propagation, Auto)
        assert model.propagation.to_json() == recorded
        model.propagation = Shared()
        assert torch.equal(model(cell, GENOTYPES).score, score)
    assert Auto.from_json(Auto(5).to_json()).to_json() == {"max_bytes": 5, "choice": None}


@pytest.mark.parametrize(
    "recorded", [{}, {"max_bytes": None, "choice": {"strategy": "x", "reason": ""}}]
)
def test_what_is_no_record(recorded: dict[str, object]) -> None:
    with pytest.raises(InputError, match="recorded propagation"):
        Auto.from_json(recorded)
