from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, Delta, Late, Propagation, Rates, Shared
from deltacell.propagate import changed as changed_module
from deltacell.propagate.changed import Changes, Places
from deltacell.propagate.delta import KEPT_BYTES, Estimate
from deltacell.propagate.protocol import mapped
from deltacell.screen import Genotypes

# Lists and differences wherever they are possible.
SPARSE = Rates(entry=1.0, flop=1.0, moved=1e-9, found=1e-9)
WAYS = [Delta(), Delta(tile=3), Delta(rates=SPARSE), Delta(rates=SPARSE, tile=5, workers=2)]
SMALL = Estimate(wild_type=1000, worker=500, tiles=(50,) * 6)


def cell_of(n_genes: int, n_edges: int) -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            f"r{i}", *rng.integers(0, n_genes, (2, n)), n_genes=n_genes, directed=i == 0
        )
        for i, n in enumerate((n_edges, 2 * n_edges, 0))
    ]
    return Cell([f"g{i}" for i in range(n_genes)], relations)


def model_of(cell: Cell, **options: Any) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=16, layers=3, output="global", **options)


@pytest.fixture
def cell() -> Cell:
    return cell_of(60, 80)


@pytest.fixture
def genotypes() -> Genotypes:
    return Genotypes.of([[0, 1, 2], [5], [7, 9], [5], [40, 41, 42, 43, 44]])


def gradients(
    model: HeteroCell, strategy: Propagation, cell: Cell, genotypes: Genotypes
) -> list[torch.Tensor]:
    model.propagation = strategy
    model.zero_grad()
    (model(cell, genotypes).score * torch.arange(1.0, len(genotypes) + 1)).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Delta, Shared, Late])
@pytest.mark.parametrize("option", ["tile", "rows_at_a_time", "workers", "max_bytes"])
def test_options_out_of_range(kind: Any, option: str) -> None:
    if option in kind.__dataclass_fields__:
        with pytest.raises(InputError) as caught:
            kind(**{option: -1})
        assert caught.value.code == "out-of-range"
        assert caught.value.fields["option"] == option


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_run_gives_the_same_bits(cell: Cell, genotypes: Genotypes, workers: int) -> None:
    model = model_of(cell)
    first = gradients(model, Delta(workers=workers), cell, genotypes)
    again = gradients(model, Delta(workers=workers), cell, genotypes)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_another_strategy_s_genotypes_and_wild_type(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell).double()
    hops, state = model.hops(cell), {"gene": model.encoder(cell)}
    deleted = Deleted.of(cell, genotypes)
    wild_type = Shared().wild_type(hops, state)
    expected = Shared().mutants(hops, wild_type, deleted, model.pooling).z
    found = Delta().mutants(hops, wild_type, deleted, model.pooling).z
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def test_a_mutant_without_any_gene() -> None:
    cell = cell_of(4, 6)
    genotypes = Genotypes.of([[0, 1, 2, 3], [2]])
    model = model_of(cell).double()
    expected = gradients(model, Shared(), cell, genotypes)
    for way in (Delta(tile=1, rates=SPARSE), Delta(tile=2, rates=SPARSE)):
        assert_same(gradients(model, way, cell, genotypes), expected)


@pytest.mark.parametrize("way", WAYS)
def test_parameters_that_do_not_learn(cell: Cell, genotypes: Genotypes, way: Delta) -> None:
    model = model_of(cell).double()
    frozen = [
        model.layers[0].gin.linears[0].weight,
        model.layers[1].gin.eps,
        model.pooling.value.weight,
        model.encoder.embedding,
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
    expected = gradients(model, Shared(), cell, genotypes)
    assert_same(gradients(model, way, cell, genotypes), expected)
    assert all(p.grad is None for p in frozen)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", WAYS)
def test_without_gradients(cell: Cell, genotypes: Genotypes, way: Delta, mode: Any) -> None:
    model = model_of(cell, propagation=way).double()
    expected = model(cell, genotypes).score
    with mode():
        found = copy.deepcopy(model)(cell, genotypes).score
    assert not found.requires_grad
    assert torch.equal(found, expected)


def test_going_back_twice(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell, propagation=Delta(workers=2)).double()
    loss = model(cell, genotypes).score.square().sum()
    loss.backward(retain_graph=True)
    first = [2 * p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss.backward()
    assert_same([p.grad for p in model.parameters() if p.grad is not None], first)


@pytest.mark.parametrize("combine", ["sum", "attention"])
@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_in_the_row_wise_part(
    cell: Cell, genotypes: Genotypes, way: Delta, combine: str
) -> None:
    model = model_of(cell, combine=combine)

    def found(strategy: Propagation) -> tuple[torch.Tensor, torch.Tensor]:
        model.propagation = strategy
        model.zero_grad()
        z = model(cell, genotypes).intermediate["z"]
        z.float().square().sum().backward()
        gradient = model.encoder.embedding.grad
        assert gradient is not None
        assert z.dtype == gradient.dtype == torch.float32
        return z.detach(), gradient.clone()

    exact = found(way)
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        rounded, shared = found(way), found(Shared())
    for a, b, c in zip(rounded, exact, shared, strict=True):
        # Rounded, and no more than where all rows are computed.
        assert 0 < (a - b).norm() < 2 * (c - b).norm() + 0.02 * b.norm()


def test_nothing_is_warned_of(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in WAYS:
            gradients(model, way, cell, genotypes)


def reached(relation: Relation, sources: set[int]) -> set[int]:
    source, target, _ = relation.entries()
    return {int(t) for s, t in zip(source, target, strict=True) if int(s) in sources}


def as_set(places: Places | None) -> set[int]:
    assert places is not None
    assert places.at.tolist() == sorted(places.at.tolist())
    return set(places.at.tolist())


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell of 24 genes; no relation is taken to reach every row."""
    monkeypatch.setattr(changed_module, "COVERED", 1000)
    return cell_of(24, 7)


@pytest.mark.parametrize("lost", [[0], [3, 7, 11], [23], [1, 2, 4, 5, 6]])
def test_exactly_those_that_hear_of_it(sparse: Cell, lost: list[int]) -> None:
    deleted = Deleted.of(sparse, Genotypes.of([lost]))
    tile = Changes(model_of(sparse).hops(sparse), SPARSE).tile(deleted.nodes, 0, 1)
    changed = set(lost)
    for found in tile.hops:
        assert as_set(found.sources["gene"]) == changed
        union: set[int] = set()
        for relation, received in zip(sparse.relations.values(), found.received, strict=True):
            computed = (reached(relation, changed) | changed) - set(lost)
            assert as_set(received.computed) == computed
            union |= computed
        assert as_set(found.changed) == union
        for received in found.received:
            taken = set() if received.taken is None else set(received.taken[1].tolist())
            assert taken == union - as_set(received.computed)
        changed |= union
    assert tile.read is not None
    places, _, living = tile.read
    assert as_set(places) == changed
    assert set(places.nodes[~living].tolist()) == set(lost)
    moved = mapped(tile, torch.Tensor.clone).hops[0].changed
    assert moved.at is moved.nodes, "tensors that are shared stay shared"


def test_a_tile_is_its_mutants_side_by_side(sparse: Cell) -> None:
    deleted = Deleted.of(sparse, Genotypes.of([[0], [3, 7], [0]]))
    changes = Changes(model_of(sparse).hops(sparse), SPARSE)
    together = changes.tile(deleted.nodes, 0, 3)
    apart = [changes.tile(deleted.nodes, b, b + 1) for b in range(3)]
    for h, found in enumerate(together.hops):
        each = (as_set(one.hops[h].changed) for one in apart)
        assert as_set(found.changed) == {n * 3 + b for b, at in enumerate(each) for n in at}
        assert found.changed is not None
        assert (found.changed.at // 3).equal(found.changed.nodes)


def test_more_may_be_computed_and_never_less(sparse: Cell) -> None:
    hops, deleted = model_of(sparse).hops(sparse), Deleted.of(sparse, Genotypes.of([[3, 7, 11]]))
    least = Changes(hops, SPARSE).tile(deleted.nodes, 0, 1)
    assert least.hops[1].received[0].difference is not None
    whole = Rates(moved=1e9, found=1e9)
    for rates in (Rates(), whole):
        more = Changes(hops, rates).tile(deleted.nodes, 0, 1)
        for a, b in zip(least.hops, more.hops, strict=True):
            assert b.changed is None or as_set(a.changed) <= as_set(b.changed)
            for r, s in zip(a.received, b.received, strict=True):
                assert s.computed is None or as_set(r.computed) <= as_set(s.computed)
                assert rates is not whole or not s.computed


def test_what_is_kept_fits() -> None:
    assert SMALL.within(None, 2) == (6, 2)
    assert Estimate(0, 0, (KEPT_BYTES // 4,) * 6).within(None, 2) == (4, 2)
    for max_bytes in range(SMALL.least, 2800, 7):
        kept, workers = SMALL.within(max_bytes, 2)
        assert SMALL.of(kept, workers) <= max_bytes
        # Nothing more would have fitted.
        assert kept == 6 or SMALL.of(kept + 1, workers) > max_bytes
    assert [SMALL.within(n, 4)[1] for n in (SMALL.least, 2150, 10**6)] == [1, 2, 4]


def test_too_small_a_bound_says_the_least_that_works() -> None:
    cell = cell_of(100, 200)
    genotypes = Genotypes.of([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(InputError) as caught:
        model_of(cell, propagation=Delta(max_bytes=1000))(cell, genotypes)
    assert caught.value.code == "max-bytes-too-small"
    least = caught.value.fields["least"]
    score = model_of(cell, propagation=Delta(max_bytes=least))(cell, genotypes).score
    assert score.shape == (2,)
    with pytest.raises(InputError):
        model_of(cell, propagation=Delta(max_bytes=least - 1))(cell, genotypes)


def test_a_tile_is_narrowed_until_it_fits() -> None:
    cell = cell_of(100, 200)
    genotypes = Genotypes.of([[i, i + 1, i + 2] for i in range(8)])
    wide = model_of(cell, propagation=Delta(workers=1)).prepare(cell, genotypes)
    assert [tile.size for tile in wide.tiles] == [8]  # type: ignore[attr-defined]
    model = model_of(cell)
    least = Delta(tile=1).estimate(model.hops(cell), Deleted.of(cell, genotypes)).least
    model.propagation = Delta(workers=1, max_bytes=2 * least)
    assert 1 <= model.prepare(cell, genotypes).tiles[0].size < 8  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 0.6])
def test_the_estimate_is_close_above_what_is_measured(share: float | None) -> None:
    made = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(share)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(made.stdout)
    assert 0.4 * measured["estimate"] < measured["peak"] < 1.05 * measured["estimate"]


# In a process of its own, where no memory lies about that was used before.
MEASURED = """
import json, sys
import numpy as np, torch
from deltacell.bench.process import PeakMemory
from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Delta
from deltacell.screen import Genotypes

torch.set_num_threads(2)
share = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
relations = [
    Relation.from_edges(f"r{i}", *rng.integers(0, 5000, (2, 20000)), n_genes=5000, directed=False)
    for i in range(6)
]
cell = Cell([f"g{i}" for i in range(5000)], relations)
model = HeteroCell(cell, hidden=64, layers=3, output="global", propagation=Delta())
batch = Genotypes.of([rng.choice(5000, 3, replace=False).tolist() for _ in range(16)])
hops = model.hops(cell)
for a in hops[0].aggregates:
    a.matrix.csr(device="cpu", dtype=torch.float32)
deleted = model.prepare(cell, batch)
estimated = Delta().estimate(hops, deleted)
bound = None if share is None else int(share * estimated.of(16, 2))
model.propagation = Delta(max_bytes=bound)
peak = PeakMemory()
model(cell, deleted).score.sum().backward()
expected = estimated.of(*estimated.within(bound, 2)) / 2**20
print(json.dumps({"estimate": expected, "peak": peak.mib()}))
"""
