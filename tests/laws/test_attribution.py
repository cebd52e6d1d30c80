"""Contributions add up to what they explain, and what has no part in a score gets none of it."""

from typing import Any

import laws
import numpy as np
import pytest
import torch
from cells import random_cell
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Relation
from deltacell.models import Dango, HeteroCell
from deltacell.models.hetero_cell.gates import METABOLISM
from deltacell.models.interface import TargetScale
from deltacell.ranking.integrated_gradients import TOLERANCE, contributions, integrated_gradients
from deltacell.screen import Genotypes

law = settings(laws.LAW, max_examples=5)
LAMBDAS = {f"r{i}": 1.0 for i in range(4)}


def model_of(cell: Cell, kind: str, **options: Any) -> Dango | HeteroCell:
    torch.manual_seed(0)
    model = (
        Dango(cell, tuple(cell.relations), LAMBDAS, hidden=8)
        if kind == "dango"
        else HeteroCell(cell, hidden=8, layers=2, local_heads=2, features=["f"], **options)
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def drawn(data: st.DataObject, cell: Cell) -> tuple[Dango | HeteroCell, list[int]]:
    kind = data.draw(st.sampled_from(["dango", "hetero_cell"]))
    options = {}
    if kind == "hetero_cell":
        options = {
            "aggregation": data.draw(st.sampled_from(["sum", "mean"])),
            "metabolism": data.draw(st.booleans()),
            "combine": data.draw(st.sampled_from(["sum", "mean", "attention", "pairwise"])),
            "output": data.draw(st.sampled_from(["mean", "gate", "global"])),
            "residual": data.draw(st.booleans()),
        }
    genes = data.draw(st.permutations(range(cell.n_genes)).map(lambda order: order[:3]))
    return model_of(cell, kind, **options), genes


def without_edges(cell: Cell, names: list[str]) -> Cell:
    relations = [
        Relation.from_edges(r.name, [], [], n_genes=cell.n_genes, directed=r.directed)
        if r.name in names
        else r
        for r in cell.relations.values()
    ]
    return Cell(cell.genes, relations, cell.metabolism, cell.features)


def score_of(model: Dango | HeteroCell, cell: Cell, genes: list[int]) -> float:
    with torch.no_grad():
        return float(model(cell, Genotypes.of([genes])).score)


@pytest.mark.slow
@law
@given(data=st.data())
def test_relations_and_genes_add_up_to_the_score_and_without_edges_get_nothing(
    data: st.DataObject,
) -> None:
    cell = data.draw(laws.small_cells())
    bare = data.draw(st.lists(st.sampled_from(list(cell.relations)), max_size=1))
    cell = without_edges(cell, bare)
    model, genes = drawn(data, cell)
    gated = model.gated(cell, genes)
    # The law is of the path; 300 gradients are what a user waits for.
    by_relation, by_gene = contributions(gated, cell.n_genes, TargetScale(), most=20_000)
    for found in (by_relation, by_gene):
        assert found.score == pytest.approx(score_of(model, cell, genes), rel=1e-9, abs=1e-10)
        assert found.complete
        size = np.abs(found.values).sum()
        assert abs(found.score - found.baseline - found.values.sum()) <= TOLERANCE * size + 1e-9
    assert by_gene.values.shape == (cell.n_genes,)
    assert all(by_relation.values[gated.relations.index(name)] == 0 for name in bare)
    if METABOLISM not in gated.relations:
        nothing = without_edges(cell, list(cell.relations))
        without = score_of(model, nothing, genes)
        assert by_relation.baseline == pytest.approx(without, rel=1e-9, abs=1e-10)


@law
@given(data=st.data())
def test_every_gate_has_the_gradient_of_its_own_change(data: st.DataObject) -> None:
    cell = data.draw(laws.small_cells())
    model, genes = drawn(data, cell)
    gated = model.gated(cell, genes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    sizes = len(gated.relations), cell.n_genes
    gates = [torch.tensor(rng.uniform(0.2, 0.9, n), requires_grad=True) for n in sizes]
    score = gated.score(*gates)
    found = torch.autograd.grad(score, gates)
    step = 1e-6
    for gate, gradient in zip(gates, found, strict=True):
        k = int(rng.integers(len(gate)))
        with torch.no_grad():
            gate[k] += step
            above = float(gated.score(*gates))
            gate[k] -= 2 * step
            below = float(gated.score(*gates))
            gate[k] += step
        change = (above - below) / (2 * step)
        assert float(gradient[k]) == pytest.approx(change, rel=1e-3, abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_gene_with_no_path_to_the_deleted_ones_gets_nothing_of_dango(seed: int) -> None:
    n = 16
    cell = random_cell(n, {"r0": 14, "r1": 14}, directed=["r0"], seed=seed)
    genes = np.random.default_rng(seed).permutation(n)[:3].tolist()
    reached = np.zeros(n, dtype=bool)
    for relation in cell.relations.values():
        step = np.zeros((n, n), dtype=bool)
        step[relation.entries().target, relation.entries().source] = True
        near = step[genes].any(axis=0)
        reached |= near | step[near].any(axis=0)
    reached[genes] = True
    gated, gates = model_of(cell, "dango").gated(cell, genes), torch.rand(n).double()
    (gradient,) = torch.autograd.grad(gated.score(torch.rand(2), gates.requires_grad_()), gates)
    assert (gradient[~reached] == 0).all()
    assert gradient[genes].all()


def test_the_order_of_genes_changes_no_bit() -> None:
    cell = random_cell(40, {"r0": 90, "r1": 90})
    model, gates = model_of(cell, "dango"), (torch.rand(2).double(), torch.rand(40).double())
    for seed in range(9):
        genes = np.random.default_rng(seed).permutation(40)[:7].tolist()
        forwards, backwards = (model.gated(cell, one) for one in (genes, genes[::-1]))
        assert torch.equal(forwards.score(*gates), backwards.score(*gates))


def test_integrated_gradients_equal_those_worked_out_by_hand() -> None:
    def function(g: torch.Tensor) -> torch.Tensor:
        return 3 + g[0] * g[1] + g[2] ** 3 - torch.relu(g[3] - 0.3)

    found = integrated_gradients(function, 5)
    assert found.values == pytest.approx([0.5, 0.5, 1, -0.7, 0], abs=0.01)
    assert (found.baseline, found.score) == (3, pytest.approx(4.3))
    assert found.complete


def test_a_steep_step_is_found_and_one_that_is_missed_is_told() -> None:
    def steep(g: torch.Tensor) -> torch.Tensor:
        return torch.tanh(1e4 * (g[0] - 0.317)) + g[1]

    found = integrated_gradients(steep, 2)
    assert found.values == pytest.approx([2, 1], abs=0.03)
    assert found.complete
    hasty = integrated_gradients(steep, 2, most=15)
    assert not hasty.complete
    assert abs(hasty.residual) > 1
