from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Delta
from deltacell.propagate.delta import KEPT_SUMS, Estimate, Keeping, estimate, keeping_within
from deltacell.screen import Genotypes

SMALL = Estimate(wild_type=1000, worker=500, again=10, states=(10,) * 6, sums=(40,) * 6)


def cell_of(n_genes: int, n_edges: int, n_relations: int) -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            f"r{i}", *rng.integers(0, n_genes, (2, n_edges)), n_genes=n_genes, directed=False
        )
        for i in range(n_relations)
    ]
    return Cell([f"g{i}" for i in range(n_genes)], relations)


def genotypes_of(n_genes: int, batch: int) -> Genotypes:
    rng = np.random.default_rng(1)
    return Genotypes.of([rng.choice(n_genes, 3, replace=False).tolist() for _ in range(batch)])


def model_of(cell: Cell, propagation: Delta, hidden: int = 16) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(
        cell, hidden=hidden, layers=3, output="global", z_norm="none", propagation=propagation
    )


def test_without_a_bound_all_states_are_kept() -> None:
    assert keeping_within(SMALL, 2, None) == Keeping(states=6, sums=6, workers=2)
    large = Estimate(0, 0, 10, (10,) * 6, (KEPT_SUMS // 4,) * 6)
    assert keeping_within(large, 2, None) == Keeping(states=6, sums=4, workers=2)


@pytest.mark.parametrize("max_bytes", range(1510, 2500, 7))
def test_what_is_kept_fits(max_bytes: int) -> None:
    keeping = keeping_within(SMALL, 2, max_bytes)
    assert SMALL.of(keeping) <= max_bytes
    assert keeping.sums <= keeping.states <= 6
    # Nothing more would have fitted.
    if keeping.states < 6:
        assert SMALL.of(Keeping(keeping.states + 1, 0, keeping.workers)) > max_bytes
    elif keeping.sums < 6:
        assert SMALL.of(Keeping(6, keeping.sums + 1, keeping.workers)) > max_bytes


def test_fewer_threads_before_none() -> None:
    assert keeping_within(SMALL, 4, 1510).workers == 1
    assert keeping_within(SMALL, 4, 2020).workers == 2
    assert keeping_within(SMALL, 4, 10**6).workers == 4


def test_too_small_a_bound_says_the_least_that_works() -> None:
    cell = cell_of(100, 200, 2)
    genotypes = genotypes_of(100, 4)
    with pytest.raises(InputError, match="max_bytes is 1,000, and one genotype") as raised:
        model_of(cell, Delta(max_bytes=1000))(cell, genotypes)
    found = re.search(r"Give at least ([\d,]+) bytes", str(raised.value))
    assert found is not None
    least = int(found[1].replace(",", ""))
    assert model_of(cell, Delta(max_bytes=least))(cell, genotypes).score.shape == (4,)
    with pytest.raises(InputError, match=f"Give at least {least:,} bytes"):
        model_of(cell, Delta(max_bytes=least - 1))(cell, genotypes)


def test_a_tile_is_narrowed_until_it_fits() -> None:
    cell = cell_of(100, 200, 2)
    genotypes = genotypes_of(100, 8)
    free = model_of(cell, Delta(workers=1))
    wide = free.prepare(cell, genotypes)
    assert [tile.size for tile in wide.tiles] == [8]
    one = model_of(cell, Delta(tile=1)).prepare(cell, genotypes)
    least = estimate(free.hops(cell), one.tiles, 2208).least
    narrow = model_of(cell, Delta(workers=1, max_bytes=2 * least)).prepare(cell, genotypes)
    assert 1 <= narrow.tiles[0].size < 8


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_result_and_gradient_whatever_is_kept(workers: int) -> None:
    cell = cell_of(100, 200, 2)
    genotypes = genotypes_of(100, 6)

    def found(max_bytes: int | None) -> list[torch.Tensor]:
        model = model_of(cell, Delta(tile=1, workers=workers, max_bytes=max_bytes)).double()
        score = model(cell, genotypes).score
        score.square().sum().backward()
        return [score.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    free = model_of(cell, Delta(tile=1)).double()
    deleted = free.prepare(cell, genotypes)
    estimated = estimate(free.hops(cell), deleted.tiles, 2208)
    whole = estimated.of(Keeping(6, 6, 2))
    expected = found(None)
    for bound in np.linspace(estimated.least, whole, 5).astype(int).tolist():
        for a, b in zip(found(bound), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


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
from deltacell.propagate.delta import Keeping
from deltacell.propagate.delta import estimate, keeping_within
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
estimated = estimate(hops, deleted.tiles, 2208)
bound = None if share is None else int(share * estimated.of(Keeping(16, 16, 2)))
model.propagation = Delta(max_bytes=bound)
peak = PeakMemory()
model(cell, deleted).score.sum().backward()
keeping = keeping_within(estimated, 2, bound)
print(json.dumps({"estimate": estimated.of(keeping) / 2**20, "peak": peak.mib()}))
"""
