"""The ways with masks: what each sends, and what is left behind on the device."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, Shared, strategy
from deltacell.propagate.ladder import DeviceMask, EdgeMask, StoredEdges, StoredMasks, Subgraph
from deltacell.propagate.ladder.masks import removed_edges
from deltacell.propagate.ladder.subgraph import links_of
from deltacell.screen import Genotypes


def test_what_each_way_sends(
    cell: Cell, model: HeteroCell, genotypes: Genotypes, tmp_path: Path
) -> None:
    hops, deleted = model.hops(cell), Deleted.of(cell, genotypes)
    n_edges = sum(link.matrix.n_entries for link in links_of(hops))
    own = genotypes.nbytes / len(genotypes)
    edge_mask = EdgeMask().prepare(hops, deleted)
    assert edge_mask.loader_bytes_per_genotype == n_edges + own
    masks, edges = StoredMasks(tmp_path / "m"), StoredEdges(tmp_path / "e")
    for way in (masks, edges):
        way.fill(hops, deleted)
    assert masks.prepare(hops, deleted).loader_bytes_per_genotype == n_edges + own
    removed = [int((~m).sum()) for m in edge_mask.tensors]
    sent = edges.prepare(hops, deleted).loader_bytes_per_genotype
    assert sent == 8 * sum(removed) / len(genotypes) + 8 * len(removed) + own
    assert DeviceMask().prepare(hops, deleted) is deleted
    # Two int64 an edge that is left, and little more.
    left = 16 * (n_edges - sum(removed) / len(genotypes))
    assert left < Subgraph().prepare(hops, deleted).loader_bytes_per_genotype < left + 1000


def test_removed_edges_are_those_that_touch_what_is_deleted() -> None:
    cell = Cell.synthetic("demo")
    model = HeteroCell(cell, hidden=8, layers=2, metabolism=True)
    rng = np.random.default_rng(0)
    genotypes = Genotypes.of([rng.choice(300, 30, replace=False).tolist() for _ in range(3)])
    deleted = Deleted.of(cell, genotypes, metabolism=True)
    assert deleted.nodes["reaction"].starts[-1] > 0
    links = links_of(model.hops(cell))
    assert [(link.target, link.source) for link in links[9:]] == [
        ("reaction", "gene"),
        ("reaction", "metabolite"),
        ("metabolite", "reaction"),
        ("gene", "reaction"),
    ]
    for link in links:
        rows, columns, _ = link.matrix.entries(device="cpu", dtype=torch.float32)
        positions, owner = removed_edges(link, deleted)
        for b in range(3):
            gone = torch.zeros(link.matrix.n_entries, dtype=torch.bool)
            for ends, kind in ((rows, link.target), (columns, link.source)):
                if (lost := deleted.nodes.get(kind)) is not None:
                    gone |= torch.isin(ends, lost.nodes[lost.owner == b])
            assert torch.equal(positions[owner == b].unique(), gone.nonzero().squeeze(1))


def test_subgraphs_are_what_the_living_induce(
    cell: Cell, model: HeteroCell, genotypes: Genotypes
) -> None:
    graphs = Subgraph().prepare(model.hops(cell), Deleted.of(cell, genotypes)).graphs
    assert len(graphs["gene"].rows) == 20 * len(genotypes) - len(genotypes.genes)
    for b, genes in enumerate(genotypes):
        graph = graphs[b]
        rows = graph["gene"].rows
        assert sorted({*range(20)} - {*genes.tolist()}) == rows.tolist()
        for number, relation in enumerate(cell.relations.values()):
            edges = rows[graph["gene", f"link{number}", "gene"].edge_index]
            source, target, _ = relation.entries()
            expected = {
                (s, t)
                for s, t in zip(source.tolist(), target.tolist(), strict=True)
                if not {s, t} & {*genes.tolist()}
            }
            assert {(s, t) for s, t in edges.t().tolist()} == expected


@pytest.mark.parametrize("name", ["subgraph", "edge_mask", "stored_edges", "stored_masks"])
def test_what_another_strategy_prepared_is_refused(
    cell: Cell, model: HeteroCell, genotypes: Genotypes, name: str
) -> None:
    model.propagation = Shared()
    prepared = model.prepare(cell, genotypes)
    model.propagation = strategy(name)
    with pytest.raises(InputError) as caught:
        model(cell, prepared)
    assert caught.value.code == "not-prepared"


@pytest.mark.parametrize("way", [Subgraph(), EdgeMask(), DeviceMask()])
def test_prepared_batches_move_and_models_copy(
    cell: Cell, model: HeteroCell, genotypes: Genotypes, way: object
) -> None:
    model.propagation = way  # type: ignore[assignment]
    prepared = model.prepare(cell, genotypes)
    moved = prepared.to("cpu")
    assert type(moved) is type(prepared)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(cell, moved).score, model(cell, prepared).score)
