from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, Hop, Rates
from deltacell.propagate import changed as changed_module
from deltacell.propagate.changed import Changes, Places
from deltacell.propagate.deleted import mapped
from deltacell.screen import Genotypes

# Lists and differences wherever they are possible.
SPARSE = Rates(entry=1.0, far_entry=1.0, flop_forward=1.0, moved=1e-9, picked=1e-9, found=1e-9)
N = 24


@pytest.fixture(autouse=True)
def _nothing_is_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_module, "COVERED", 1000)


@pytest.fixture
def cell() -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(name, *rng.integers(0, N - 4, (2, n)), n_genes=N, directed=directed)
        for name, n, directed in (("a", 14, True), ("b", 12, False), ("none", 0, False))
    ]
    return Cell([f"g{i}" for i in range(N)], relations)


def hops_of(cell: Cell, **options: Any) -> list[Hop]:
    return HeteroCell(cell, hidden=8, layers=3, output="global", **options).hops(cell)


def reached(relation: Relation, sources: set[int]) -> set[int]:
    source, target, _ = relation.entries()
    return {int(t) for s, t in zip(source, target, strict=True) if int(s) in sources}


def as_set(places: Places | None) -> set[int]:
    assert places is not None
    assert places.at.tolist() == sorted(places.at.tolist())
    return set(places.at.tolist())


@pytest.mark.parametrize("lost", [[0], [3, 7, 11], [N - 1], [1, 2, 4, 5, 6]])
def test_exactly_those_that_hear_of_it(cell: Cell, lost: list[int]) -> None:
    hops = hops_of(cell)
    deleted = Deleted.of(cell, Genotypes.of([lost]))
    tile = Changes(hops, SPARSE).tile(deleted.nodes, 0, 1)
    changed = set(lost)
    for found in tile.hops:
        assert as_set(found.sources["gene"]) == changed
        union: set[int] = set()
        for relation, received in zip(cell.relations.values(), found.received, strict=True):
            computed = (reached(relation, changed) | changed) - set(lost)
            assert as_set(received.computed) == computed
            union |= computed
        assert as_set(found.changed) == union
        for received in found.received:
            taken = set() if received.taken is None else as_set(received.taken)
            assert taken == union - as_set(received.computed)
        changed |= union
    assert tile.read is not None
    assert as_set(tile.read.places) == changed
    dead = tile.read.places.nodes[~tile.read.living]
    assert set(dead.tolist()) == set(lost)


def test_a_tile_is_its_mutants_side_by_side(cell: Cell) -> None:
    hops = hops_of(cell, aggregation="mean")
    sets = [[0], [3, 7], [0]]
    deleted = Deleted.of(cell, Genotypes.of(sets))
    changes = Changes(hops, SPARSE)
    together = changes.tile(deleted.nodes, 0, 3)
    apart = [changes.tile(deleted.nodes, b, b + 1) for b in range(3)]
    for h, found in enumerate(together.hops):
        expected = {
            node * 3 + b for b, one in enumerate(apart) for node in as_set(one.hops[h].changed)
        }
        assert as_set(found.changed) == expected
        assert found.changed is not None
        assert (found.changed.at // 3).equal(found.changed.nodes)
    for matrix, (places, fewer) in together.silent.items():
        counts = torch.zeros(N, 3, dtype=torch.long).view(-1).index_add(0, places.at, fewer)
        for b, lost in enumerate(sets):
            expected_counts = torch.zeros(N, dtype=torch.long)
            for source in lost:
                targets = torch.from_numpy(
                    matrix.transpose.indices[
                        matrix.transpose.indptr[source] : matrix.transpose.indptr[source + 1]
                    ].astype(np.int64)
                )
                expected_counts[targets] += 1
            assert counts.view(N, 3)[:, b].equal(expected_counts)


def test_more_may_be_computed_and_never_less(cell: Cell) -> None:
    hops = hops_of(cell)
    deleted = Deleted.of(cell, Genotypes.of([[3, 7, 11]]))
    least = Changes(hops, SPARSE).tile(deleted.nodes, 0, 1)
    for rates in (Rates(), Rates(moved=1e9, found=1e9, picked=1e9), Rates(found=1e9, picked=1e-9)):
        more = Changes(hops, rates).tile(deleted.nodes, 0, 1)
        for a, b in zip(least.hops, more.hops, strict=True):
            assert b.changed is None or as_set(a.changed) <= as_set(b.changed)
            for r, s in zip(a.received, b.received, strict=True):
                assert s.computed is None or as_set(r.computed) <= as_set(s.computed)


def test_costs_choose_the_way(cell: Cell) -> None:
    hops = hops_of(cell)
    deleted = Deleted.of(cell, Genotypes.of([[3, 7, 11]]))
    sparse = Changes(hops, SPARSE).tile(deleted.nodes, 0, 1).hops[1].received[0]
    assert sparse.difference is not None
    assert sparse.to_changed
    picked = Rates(entry=1.0, far_entry=1.0, flop_forward=1.0, moved=1e-9, picked=1e-9, found=1e9)
    some = Changes(hops, picked).tile(deleted.nodes, 0, 1).hops[1].received[0]
    assert some.difference is None
    assert some.to_changed
    whole = Rates(moved=1e9, found=1e9, picked=1e9)
    every = Changes(hops, whole).tile(deleted.nodes, 0, 1).hops[1].received[0]
    assert every.difference is None
    assert not every.to_changed
    assert every.computed is None


def test_a_covered_relation_is_taken_to_reach_every_row_that_hears(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_module, "COVERED", 0)
    deleted = Deleted.of(cell, Genotypes.of([[3]]))
    found = Changes(hops_of(cell), SPARSE).tile(deleted.nodes, 0, 1).hops[0]
    for relation, received in zip(cell.relations.values(), found.received, strict=True):
        # One without any entry from the deleted gene is not covered by it.
        if relation.out_degree[3]:
            assert as_set(received.computed) == set(np.flatnonzero(relation.in_degree)) - {3}


def test_tensors_that_are_shared_stay_shared(cell: Cell) -> None:
    deleted = Deleted.of(cell, Genotypes.of([[3]]))
    tile = Changes(hops_of(cell), SPARSE).tile(deleted.nodes, 0, 1)
    moved = mapped(tile, torch.Tensor.clone).hops[0].changed
    assert moved is not None
    assert moved.at is moved.nodes
