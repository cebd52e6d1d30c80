from __future__ import annotations

import json

import pytest
import torch

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import (
    GENE,
    REACTION,
    STRATEGIES,
    Auto,
    Choice,
    Deleted,
    Delta,
    Late,
    Shared,
    strategy,
)
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
    with pytest.raises(InputError) as caught:
        Auto.from_json(recorded)
    assert caught.value.code == "bad-propagation-record"


def test_strategies_by_name() -> None:
    assert {name: strategy(name).name for name in STRATEGIES} == {n: n for n in STRATEGIES}
    assert strategy("shared", tile=2) == Shared(tile=2)
    for name, options, code in (
        ("fast", {}, "unknown-propagation"),
        ("dense", {"tile": 2}, "unknown-option"),
    ):
        with pytest.raises(InputError) as caught:
            strategy(name, **options)
        assert caught.value.code == code


def test_genes_and_the_reactions_lost_with_them() -> None:
    genes = Genes(["g0", "g1", "g2", "g3"])
    relation = Relation.from_edges("r", [0], [1], n_genes=4, directed=True)
    metabolism = Metabolism.build(
        genes, ["q0", "q1"], ["p0"], [(0, 0, 1.0)], ["g0 and g1", "g1 or g2"], [0.0] * 2, [1.0] * 2
    )
    cell = Cell(genes, [relation], metabolism)
    deleted = Deleted.of(cell, Genotypes.of([[0], [3], [1, 2]]), metabolism=True)
    assert len(deleted) == 3
    assert deleted.nodes[GENE].nodes.tolist() == [0, 3, 1, 2]
    assert deleted.nodes[GENE].owner.tolist() == [0, 1, 2, 2]
    assert deleted.nodes[REACTION].nodes.tolist() == [0, 0, 1]
    assert deleted.nodes[REACTION].owner.tolist() == [0, 2, 2]
    tile = deleted.nodes[GENE].tile(1, 3)
    assert (tile.nodes.tolist(), tile.owner.tolist(), tile.starts) == (
        [3, 1, 2],
        [0, 1, 1],
        (0, 1, 3),
    )
    there = deleted.to("meta")
    assert {there.genotypes.genes.device.type, there.nodes[REACTION].owner.device.type} == {"meta"}
    for sets in ([[0], [4]], [[0], []], [[1, 1]]):
        with pytest.raises(InputError):
            Deleted.of(cell, Genotypes.of(sets))
    with pytest.raises(InputError) as caught:
        Deleted.of(Cell(genes, [relation]), Genotypes.of([[0]]), metabolism=True)
    assert caught.value.code == "no-metabolism"
