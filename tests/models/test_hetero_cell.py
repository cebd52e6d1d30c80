from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.errors import InputError
from deltacell.models import hyper_sagnn
from deltacell.models.combine import COMBINATIONS
from deltacell.models.hetero_cell import MUTANTS, HeteroCell, matched_genes
from deltacell.propagate import Dense, Shared
from deltacell.screen import Genotypes

RULES = ["g0 and g1", "g1 or g2", "", "g3"]
STOICHIOMETRY = [(0, 0, -1.0), (0, 1, 2.0), (1, 1, -1.0), (1, 2, 1.0), (2, 0, 0.5), (3, 2, -3.0)]


def cell_of(n: int = 20, *, metabolism: bool = True) -> Cell:
    rng = np.random.default_rng(0)
    genes = Genes([f"g{i}" for i in range(n)])
    relations = [
        Relation.from_edges(name, *rng.integers(0, n, (2, 40)), n_genes=n, directed=directed)
        for name, directed in (("a", False), ("b", True), ("c", False))
    ]
    made = Metabolism.build(
        genes,
        [f"q{j}" for j in range(4)],
        ["p0", "p1", "p2"],
        STOICHIOMETRY,
        RULES,
        [0] * 4,
        [1] * 4,
    )
    known = np.arange(n) % 3 > 0
    values = np.where(known[:, None], rng.normal(size=(n, 5)), np.nan)
    return Cell(genes, relations, made if metabolism else None, [Feature("f", values)])


@pytest.fixture
def cell() -> Cell:
    return cell_of()


@pytest.fixture
def genotypes() -> Genotypes:
    return Genotypes.of([[0], [1, 2], [3, 4, 5], [0, 6, 7, 8]])


def small(cell: Cell, **options: Any) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, **({"hidden": 16, "layers": 2} | options))


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def reference_cell() -> Cell:
    """As many genes and relations as the reference, with hardly an edge."""
    relations = [
        Relation.from_edges(f"r{i}", [0], [1], n_genes=6607, directed=False) for i in range(9)
    ]
    return Cell([f"g{i}" for i in range(6607)], relations)


def test_parameters_of_the_two_reference_configurations(reference_cell: Cell) -> None:
    large = HeteroCell(reference_cell, gin_layers=4, combine="pairwise", z_norm="none")
    assert n_parameters(large) == 1_781_187
    smaller = HeteroCell(reference_cell, combine="sum", output="global", z_norm="none")
    assert n_parameters(smaller) == 669_917


def test_parameters_of_metabolism(cell: Cell) -> None:
    h, layers = 16, 2
    extra = n_parameters(small(cell, metabolism=True)) - n_parameters(small(cell))
    in_layers = 3 * h**2 + h + 2 * h**2 + h + h**2 + h + 4 * h
    assert extra == (4 + 3) * h + layers * in_layers


def test_it_starts_as_the_specification_says(reference_cell: Cell) -> None:
    model = HeteroCell(reference_cell)
    assert float(model.encoder.embedding.detach().std()) == pytest.approx(0.02, rel=0.02)
    gin = model.layers[0].gin
    assert (gin.eps == 0).all()
    plain = nn.Linear(64, 64)
    for linear in gin.linears:
        assert float(linear.weight.detach().abs().max()) == pytest.approx(1 / 8, rel=1e-3)
        assert float(linear.weight.detach().std()) == pytest.approx(
            float(plain.weight.detach().std()), rel=0.05
        )


@pytest.mark.parametrize("output", ["mean", "gate", "global"])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_what_a_prediction_holds(
    cell: Cell, genotypes: Genotypes, combine: str, output: str
) -> None:
    options = {"metabolism": True, "features": ["f"], "residual": True, "gin_layers": 4}
    model = small(cell, combine=combine, output=output, **options)
    prediction = model(cell, genotypes)
    found = prediction.intermediate
    assert prediction.score.shape == (4,)
    assert found["genes"].shape == (20, 16)
    assert found["pool"].shape == (16,)
    assert found["z"].shape == (4, 16)
    if output == "global":
        assert "local" not in found
        assert torch.equal(prediction.score, found["global"])
    if output == "mean":
        torch.testing.assert_close(prediction.score, (found["global"] + found["local"]) / 2)
    if output == "gate":
        both = torch.stack([found["global"], found["local"]], -1)
        torch.testing.assert_close(prediction.score, (found["gate"] * both).sum(-1))
        torch.testing.assert_close(found["gate"].sum(-1), torch.ones(4))
    prediction.score.square().sum().backward()
    unread = {n for n, p in model.named_parameters() if p.grad is None}
    # Nothing reads the metabolites of the last layer.
    last = {f"metabolic_layers.1.metabolite{part}" for part in ("", "_norm")}
    assert unread == {f"{name}.{w}" for name in last for w in ("weight", "bias")}


@pytest.mark.parametrize("output", ["mean", "gate", "global"])
def test_an_empty_batch(cell: Cell, output: str) -> None:
    model = small(cell, output=output, metabolism=True)
    for strategy in (Shared(), Dense()):
        model.propagation = strategy
        prediction = model(cell, Genotypes.of([]))
        assert prediction.score.shape == (0,)
        assert prediction.intermediate["z"].shape == (0, 16)
        assert model.mutant_vectors(cell, Genotypes.of([])).shape == (0, 20, 16)
        prediction.score.sum().backward()


def test_prepared_ahead_is_the_same(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell, metabolism=True)
    prepared = model.prepare(cell, genotypes)
    assert torch.equal(model(cell, prepared).score, model(cell, genotypes).score)


def test_the_wild_type_is_propagated_once(cell: Cell, genotypes: Genotypes) -> None:
    class Counting(Shared):
        calls = 0

        def wild_type(self, *args: Any) -> Any:
            Counting.calls += 1
            return super().wild_type(*args)

    model = small(cell, propagation=Counting())
    model(cell, genotypes).score.sum().backward()
    assert Counting.calls == 1


class Operations(TorchDispatchMode):
    """Counts what is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_neither_waits_nor_loops_over_genotypes(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole batch as a tile, as on a GPU."""
    # On a CPU, where looking is free, this one looks.
    monkeypatch.setattr(hyper_sagnn, "_check_largest", lambda *_: None)
    model = small(
        cell,
        metabolism=True,
        largest=4,
        aggregation="mean",
        combine="pairwise",
        output="gate",
        dropout=0.1,
        propagation=Shared(tile=1000, rows_at_a_time=0),
    )
    counts = []
    for n in (3, 11):
        sets = [[i, (i + 1) % 20, (i + 2) % 20] for i in range(n)]
        prepared = model.prepare(cell, Genotypes.of(sets))
        # Matrices and transposes are made once, the first time.
        model(cell, prepared).score.sum().backward()
        with Operations() as operations:
            model(cell, prepared).score.square().sum().backward()
        counts.append(operations.seen)
    assert not [name for name in counts[0] if "local_scalar" in name or "nonzero" in name]
    assert counts[0] == counts[1]


def test_dropout_is_for_training_only(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell, dropout=0.5)
    assert not torch.equal(model(cell, genotypes).score, model(cell, genotypes).score)
    model.eval()
    assert torch.equal(model(cell, genotypes).score, model(cell, genotypes).score)


def test_z_starts_at_a_size_that_layers_can_use(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell, z_norm="scale")
    assert model.global_head.log_scale is not None
    assert math.exp(model.global_head.log_scale.item()) == pytest.approx(20)
    z = model(cell, genotypes).intermediate["z"]
    head = small(cell, z_norm="norm").global_head
    assert head.norm is not None
    normed = head.norm(20 * z)
    torch.testing.assert_close(normed.mean(-1), torch.zeros(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows_at_a_time", [0, 8])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_bfloat16_autocast(
    cell: Cell, genotypes: Genotypes, combine: str, rows_at_a_time: int
) -> None:
    strategy = Shared(rows_at_a_time=rows_at_a_time)
    model = small(
        cell, combine=combine, metabolism=True, features=["f"], output="gate", propagation=strategy
    )
    exact = model(cell, genotypes)
    exact.score.square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", torch.bfloat16):
            prediction = model(cell, genotypes)
        prediction.score.float().square().sum().backward()
    found = prediction.intermediate
    assert found["z"].dtype == found["genes"].dtype == found["pool"].dtype == torch.float32
    for name in ("genes", "z"):
        # Rounding by 8 bits somewhere on the way, and not more.
        error = (found[name] - exact.intermediate[name]).norm()
        assert error < 0.1 * exact.intermediate[name].norm()
    assert not torch.equal(found["genes"], exact.intermediate["genes"])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None and parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all()
            assert parameter.grad.dtype == torch.float32


def test_a_profiler_shows_the_parts(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell, metabolism=True, output="gate", propagation="shared")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(cell, genotypes)
    names = {event.key for event in profile.key_averages()}
    parts = [
        "encoder",
        "wild_type",
        "mutants",
        "layer1",
        "layer2",
        "layer2.combination",
        "metabolism1",
        "pooling",
        "global_head",
        "local_head",
        "gate",
    ]
    assert {f"hetero_cell.{part}" for part in parts} <= names


def test_a_copy_is_a_model_of_its_own(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell)
    other = copy.deepcopy(model)
    assert torch.equal(other(cell, genotypes).score, model(cell, genotypes).score)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relations": ["a", "d"]}, "no relation 'd'; it has a, b, c"),
        ({"relations": []}, "at least one relation"),
        ({"relations": ["a", "a"]}, "'a' was given twice"),
        ({"features": ["g"]}, "no feature 'g'; it has f"),
        ({"combine": "max"}, "no combination 'max'; there are sum, mean, attention, pairwise"),
        ({"output": "local"}, "no output 'local'; there are mean, gate, global"),
        ({"aggregation": "max"}, "no aggregation 'max'; there are sum, mean"),
        ({"activation": "gulu"}, "no activation 'gulu'; there are gelu"),
        ({"z_norm": "batch"}, "no z_norm 'batch'; there are scale, norm, none"),
        ({"propagation": "fast"}, "unknown propagation 'fast'; there are "),
        ({"hidden": 12, "local_heads": 5}, "12, which 5 attention heads do not divide"),
        ({"hidden": 6, "combine": "attention", "output": "global"}, "6, which the 4 heads"),
        ({"hidden": 0}, "hidden is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"gin_layers": 0}, "gin_layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_a_model_that_cannot_be(cell: Cell, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(cell, **options)


def test_metabolism_that_is_not_there(cell: Cell, genotypes: Genotypes) -> None:
    without = cell_of(metabolism=False)
    with pytest.raises(InputError, match="has no metabolism"):
        small(without, metabolism=True)
    model = small(cell, metabolism=True)
    with pytest.raises(InputError, match="this one has none"):
        model(without, genotypes)
    with pytest.raises(InputError, match="prepared without metabolism"):
        model(cell, small(cell).prepare(cell, genotypes))


@pytest.mark.parametrize(
    ("sets", "message"),
    [([[0], [20]], "deletes gene 20, and the cell's genes are 0 to 19"), ([[]], "no gene")],
)
def test_genotypes_that_do_not_fit(cell: Cell, sets: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(cell)(cell, Genotypes.of(sets))


def test_cells_that_do_not_fit(cell: Cell, genotypes: Genotypes) -> None:
    model = small(cell, features=["f"], metabolism=True)
    with pytest.raises(InputError, match="has 19 genes, and the model was made for 20"):
        model(cell.subset(range(19)), genotypes)
    with pytest.raises(InputError, match="no relation 'c'"):
        model(cell.with_relations(["a", "b"]), genotypes)
    wider = cell.with_feature(Feature.of_all("f", np.zeros((20, 6))))
    with pytest.raises(InputError, match="'f' of the cell has the width 6"):
        model(wider, genotypes)
    assert cell.metabolism is not None
    split = Cell(cell.genes, cell.relations, cell.metabolism.split(), cell.features)
    with pytest.raises(InputError, match="reactions and 3 metabolites, and the model was made"):
        model(split, genotypes)


def test_wrong_genes_have_the_same_degrees_and_other_neighbours() -> None:
    cell = Cell.synthetic("demo")
    instead = matched_genes(cell, tuple(cell.relations))
    assert sorted(instead.tolist()) == list(range(cell.n_genes))
    assert (instead != np.arange(cell.n_genes)).all()
    degrees = np.stack([r.out_degree for r in cell.relations.values()], axis=1)
    total = np.log1p(degrees).sum(1)
    shuffled = np.random.default_rng(0).permutation(cell.n_genes)
    apart = np.abs(total - total[instead]).mean()
    assert apart < 0.25 * np.abs(total - total[shuffled]).mean()


def test_what_a_mutant_is_made_of() -> None:
    cell = Cell.synthetic("demo")
    sets = [[0, 5], [7, 3], [1, 2, 4]]
    made = {}
    for kind in MUTANTS:
        torch.manual_seed(0)
        made[kind] = HeteroCell(cell, hidden=16, layers=2, mutant_layers=1, mutants=kind).eval()
    true, wrong, none = (made[kind](cell, Genotypes.of(sets)) for kind in MUTANTS)
    # All heads have the same weights, and the local one sees the deleted genes themselves.
    torch.testing.assert_close(true.intermediate["local"], wrong.intermediate["local"])
    torch.testing.assert_close(true.intermediate["local"], none.score)
    assert (true.intermediate["z"] - wrong.intermediate["z"]).abs().max() > 1e-6
    assert "z" not in none.intermediate
    instead = [made["matched"].instead[s].tolist() for s in sets]
    named = made["true"](cell, Genotypes.of(instead)).intermediate["z"]
    torch.testing.assert_close(wrong.intermediate["z"], named)
    none.score.sum().backward()
    with pytest.raises(InputError, match="mutants"):
        made["none"].mutant_vectors(cell, Genotypes.of(sets))


@pytest.mark.parametrize(
    "options", [{"mutant_layers": 0}, {"mutant_layers": 4}, {"mutants": "none", "output": "gate"}]
)
def test_mutants_that_cannot_be(cell: Cell, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="mutant"):
        HeteroCell(cell, layers=3, **options)


def test_epistasis_of_large_sets_and_of_all_genes_is_refused(cell: Cell) -> None:
    model = HeteroCell(cell, mutant_layers=1, epistasis=True)
    with pytest.raises(InputError, match="at most 5"):
        model.prepare(cell, Genotypes.of([list(range(6))]))
    one = Cell(["a", "b"], [Relation.from_edges("r", [0], [1], n_genes=2, directed=False)])
    model = HeteroCell(one, mutant_layers=1, epistasis=True)
    with pytest.raises(InputError, match="all 2 genes"):
        model.prepare(one, Genotypes.of([[0, 1]]))


def test_late_is_for_one_hop(cell: Cell, genotypes: Genotypes) -> None:
    with pytest.raises(InputError, match="one layer"):
        HeteroCell(cell, layers=2, propagation="late").prepare(cell, genotypes)


def test_parameters_of_what_the_head_reads(cell: Cell) -> None:
    def count(**options: Any) -> int:
        model = HeteroCell(cell, hidden=16, layers=2, local_heads=2, **options)
        return sum(p.numel() for p in model.parameters())

    assert count(epistasis=True) - count() == 16 * 16 + 1
    more = count(epistasis=True, metabolism=True) - count(metabolism=True)
    assert more == 2 * 16 * 16 + 1
