from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted
from deltacell.propagate.ladder.graphs import Incidence, links_of, removed_edges
from deltacell.screen import Genotypes


@pytest.fixture
def demo() -> tuple[Cell, HeteroCell]:
    cell = Cell.synthetic("demo")
    return cell, HeteroCell(cell, hidden=8, layers=2, metabolism=True)


def test_links_are_there_once(cell: Cell, model: HeteroCell) -> None:
    links = links_of(model.hops(cell))
    assert [link.n_edges for link in links] == [r.n_entries for r in cell.relations.values()]
    assert {(link.target, link.source) for link in links} == {("gene", "gene")}


def test_links_of_a_metabolism(demo: tuple[Cell, HeteroCell]) -> None:
    cell, model = demo
    kinds = [(link.target, link.source) for link in links_of(model.hops(cell))]
    assert kinds == [("gene", "gene")] * 9 + [
        ("reaction", "gene"),
        ("reaction", "metabolite"),
        ("metabolite", "reaction"),
        ("gene", "reaction"),
    ]


def test_removed_edges_are_those_that_touch_what_is_deleted(demo: tuple[Cell, HeteroCell]) -> None:
    cell, model = demo
    rng = np.random.default_rng(0)
    genotypes = Genotypes.of([rng.choice(300, 30, replace=False).tolist() for _ in range(3)])
    deleted = Deleted.of(cell, genotypes, metabolism=True)
    assert deleted.nodes["reaction"].starts[-1] > 0
    for link in links_of(model.hops(cell)):
        rows, columns, _ = link.matrix.entries(device="cpu", dtype=torch.float32)
        for b in range(3):
            dead = {
                kind: d.nodes[d.owner == b] if (d := deleted.nodes.get(kind)) is not None else None
                for kind in (link.target, link.source)
            }
            gone = torch.zeros(link.n_edges, dtype=torch.bool)
            for ends, kind in ((rows, link.target), (columns, link.source)):
                if dead[kind] is not None:
                    gone |= torch.isin(ends, dead[kind])
            assert torch.equal(removed_edges(link, deleted, b), gone.nonzero().squeeze(1))


def test_many_nodes_at_once(cell: Cell, model: HeteroCell) -> None:
    nodes = torch.tensor([4, 0, 4, 19])
    for link in links_of(model.hops(cell)):
        index = Incidence.of(link)["gene"]
        positions, which = index.of_nodes(nodes)
        apart = [index.of_node(int(n)) for n in nodes]
        assert torch.equal(positions, torch.cat(apart))
        assert which.bincount(minlength=4).tolist() == [len(p) for p in apart]
        assert Incidence.of(link)["gene"] is index
