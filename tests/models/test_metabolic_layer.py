from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.models.metabolic_layer import MetabolicEdges, MetabolicLayer
from deltacell.models.pooling import Pooling
from deltacell.propagate import GENE, METABOLITE, REACTION, Deleted, Dense, Shared
from deltacell.screen import Genotypes

RULES = ["g0 and g1", "g1 or g2", "", "g3"]
STOICHIOMETRY = [(0, 0, -1.0), (0, 1, 2.0), (1, 1, -1.0), (1, 2, 1.0), (2, 0, 0.5), (3, 2, -3.0)]


@pytest.fixture
def cell() -> Cell:
    genes = Genes([f"g{i}" for i in range(8)])
    relation = Relation.from_edges("a", [0], [1], n_genes=8, directed=False)
    metabolism = Metabolism.build(
        genes,
        [f"q{j}" for j in range(4)],
        ["p0", "p1", "p2"],
        STOICHIOMETRY,
        RULES,
        [0] * 4,
        [1] * 4,
    )
    return Cell(genes, [relation], metabolism)


def edges_of(cell: Cell) -> MetabolicEdges:
    assert cell.metabolism is not None
    return MetabolicEdges.of(cell.metabolism)


def test_the_matrices_are_made_once(cell: Cell) -> None:
    assert edges_of(cell) is edges_of(cell)


@pytest.fixture
def layer() -> MetabolicLayer:
    torch.manual_seed(0)
    return MetabolicLayer("m", 6, "gelu").double()


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    sizes = {GENE: 8, REACTION: 4, METABOLITE: 3}
    return {kind: torch.randn(n, 6, dtype=torch.float64) for kind, n in sizes.items()}


def stoichiometry() -> np.ndarray:
    s = np.zeros((4, 3))
    for j, m, coefficient in STOICHIOMETRY:
        s[j, m] = coefficient
    return s


def mean_of(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows).mean(0) if rows else torch.zeros(6, dtype=torch.float64)


def reactions(
    layer: MetabolicLayer, state: dict[str, torch.Tensor], genes_of: dict[int, list[int]]
) -> dict[int, torch.Tensor]:
    """The new vectors of living reactions, one by one, by the living genes of their rules."""
    new = {}
    for j, genes in genes_of.items():
        share = np.abs(stoichiometry()[j])
        made_of = torch.tensor(share / share.sum()) @ state[METABOLITE]
        received = torch.cat(
            [state[REACTION][j], mean_of([state[GENE][g] for g in genes]), made_of]
        )
        new[j] = functional.gelu(layer.reaction_norm(layer.reaction(received)))
    return new


def test_the_wild_type(cell: Cell, layer: MetabolicLayer, state: dict[str, torch.Tensor]) -> None:
    found = Shared().wild_type(layer.hops(edges_of(cell), last=False), state).last
    genes_of = {0: [0, 1], 1: [1, 2], 2: [], 3: [3]}
    new_q = reactions(layer, state, genes_of)
    for j in range(4):
        torch.testing.assert_close(found[REACTION][j], new_q[j])
    s = stoichiometry()
    for m in range(3):
        mean = mean_of([s[j, m] * new_q[j] for j in np.flatnonzero(s[:, m])])
        h = layer.metabolite(torch.cat([state[METABOLITE][m], mean]))
        torch.testing.assert_close(found[METABOLITE][m], functional.gelu(layer.metabolite_norm(h)))
    for g in range(8):
        mean = mean_of([new_q[j] for j, genes in genes_of.items() if g in genes])
        torch.testing.assert_close(found[GENE][g], state[GENE][g] + layer.gene(mean))


def test_a_mutant(cell: Cell, layer: MetabolicLayer, state: dict[str, torch.Tensor]) -> None:
    """Without genes 0 and 2, and so without reaction 0; reaction 1 has gene 1 left."""
    hops = layer.hops(edges_of(cell), last=True)
    deleted = Deleted.of(cell, Genotypes.of([[0, 2]]), metabolism=True)
    genes_of = {1: [1], 2: [], 3: [3]}
    new_q = reactions(layer, state, genes_of)
    pooling = Pooling(6, "gelu").double()
    for strategy in (Shared(), Dense()):
        wild_type = strategy.wild_type(hops, state)
        found = strategy.mutants(hops, wild_type, deleted, pooling, vectors=True).vectors
        assert found is not None
        assert (found[0, [0, 2]] == 0).all()
        for g in (1, 3, 4, 5, 6, 7):
            mean = mean_of([new_q[j] for j, genes in genes_of.items() if g in genes])
            torch.testing.assert_close(found[0, g], state[GENE][g] + layer.gene(mean))


def test_no_metabolite_is_computed_that_nothing_reads(cell: Cell, layer: MetabolicLayer) -> None:
    kinds = [hop.target for hop in layer.hops(edges_of(cell), last=True)]
    assert kinds == [REACTION, GENE]
