import pytest
import torch

from deltacell.cell import Cell
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import NAMES, Auto, Choice, Reason, Shared, choose, strategy
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
    ("n_hops", "device", "max_bytes", "expected"),
    [
        (1, CPU, None, Choice("late", Reason.one_layer)),
        (1, CUDA, None, Choice("late", Reason.one_layer)),
        (1, CPU, 10**9, Choice("delta", Reason.bounded_memory)),
        (2, CPU, None, Choice("delta", Reason.cpu)),
        (2, CUDA, None, Choice("shared", Reason.whole_products)),
        (2, CUDA, 10**9, Choice("delta", Reason.bounded_memory)),
    ],
)
def test_auto_chooses_by_memory_then_hops_then_device(cell, n_hops, device, max_bytes, expected):
    shapes = model_of(cell).cell_shapes(cell).hops[-n_hops:]
    assert choose(shapes, device, max_bytes) == expected


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"mutant_layers": 1}, "late"),
        ({"mutant_layers": 1, "metabolism": True}, "delta"),
        # As a resumed run has it.
        ({"mutant_layers": 1, "auto": Auto(None, "shared")}, "shared"),
    ],
)
def test_auto_scores_as_the_strategy_that_it_chose_and_keeps_one_object(cell, options, chosen):
    model = model_of(cell, **options)
    assert model.messages() is None
    assert model.facts()["propagation"]["choice"]["choice"] == model.propagation.choice  # type: ignore[union-attr]
    with torch.no_grad():
        score = model(cell, GENOTYPES).score
        first = model.strategy_for(cell)
        model(cell, GENOTYPES)
        assert model.strategy_for(cell) is first
        assert model.facts()["propagation"]["choice"] == {"max_bytes": None, "choice": chosen}
        model.propagation = strategy(chosen)
        assert torch.equal(model(cell, GENOTYPES).score, score)
    assert first.name == chosen


def test_strategies_by_name(refused):
    assert isinstance(strategy("auto"), Auto)
    names = [name for name in NAMES if name != "auto"]
    assert [strategy(name).name for name in names] == names  # type: ignore[union-attr]
    assert strategy("shared", tile=2) == Shared(tile=2)
    refused("unknown-propagation", strategy, "fast")
