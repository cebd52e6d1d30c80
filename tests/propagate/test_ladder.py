"""The ladder: what each rung sends, and what a store refuses."""

import copy
from typing import Any

import pytest
import torch
from cells import random_cell

from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import Deleted, strategy
from deltacell.propagate.reference.edges import links_of
from deltacell.screen import Genotypes

STORED = ["stored_edges", "stored_masks"]
GENOTYPES = Genotypes.of([[3], [0, 19], [5, 6, 7], [3]])


CELLS = [random_cell(20, {"a": 50, "b": 60, "empty": 0}, directed="a", seed=i) for i in (0, 1)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return HeteroCell(CELLS[0], hidden=8, layers=2, local_heads=2)


def filled(name, folder, model):
    model.propagation = strategy(name, store=folder)
    model.propagation.fill(model.mutant_shapes(CELLS[0]), Deleted.of(CELLS[0], GENOTYPES))
    return model.propagation


def test_each_strategy_sends_its_own_part_of_the_edges(model, tmp_path):
    cell = CELLS[0]
    shapes, deleted = model.mutant_shapes(cell), Deleted.of(cell, GENOTYPES)
    links, batch = links_of(shapes), len(GENOTYPES)
    n_edges = sum(link.matrix.n_entries for link in links)
    ways = {name: strategy(name) for name in ("edge_mask", "device_mask", "subgraph")}
    ways |= {name: filled(name, tmp_path / name, model) for name in STORED}
    cpu = torch.device("cpu")
    plans: Any = {name: way.plan(shapes, deleted, cpu) for name, way in ways.items()}
    removed = sum(int((~mask).sum()) for (mask,) in plans["edge_mask"].sent.values()) / batch
    sent = {name: plan.sent_bytes / batch for name, plan in plans.items()}
    assert sent == {
        "edge_mask": n_edges,
        "stored_masks": n_edges,
        "stored_edges": 8 * removed + 8 * len(links),
        "device_mask": 0,
        # Two int64 for each edge that is left.
        "subgraph": 16 * (n_edges - removed),
    }


@pytest.mark.parametrize("name", STORED)
def test_a_store_is_read_and_refused_where_it_does_not_fit(refused, name, tmp_path, model):
    cell, folder = CELLS[0], tmp_path / "store"
    expected = model(cell, GENOTYPES).score
    for code, options in (("not-a-store", {"store": folder}), ("no-store", {})):
        model.propagation = strategy(name, **options)
        refused(code, model, cell, GENOTYPES)
    filled(name, folder, model)
    # By a copy, in another order of genotypes and genes.
    score = copy.deepcopy(model)(cell, Genotypes.of([[7, 5, 6], [19, 0]])).score
    torch.testing.assert_close(score, expected[[2, 1]], rtol=1e-4, atol=1e-6)
    refused("store-of-another-screen", model, cell, Genotypes.of([[1, 2]]))
    refused("store-of-another-cell", model, CELLS[1], GENOTYPES)
    model.propagation = strategy(STORED[name == STORED[0]], store=folder)
    refused("wrong-kind", model, cell, GENOTYPES)
    file = folder / "link0.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    model.propagation = strategy(name, store=folder)
    refused("damaged", model, cell, GENOTYPES)
