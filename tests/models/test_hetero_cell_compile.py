from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Shared
from deltacell.screen import Genotypes


@pytest.fixture
def cell() -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(name, *rng.integers(0, 20, (2, 40)), n_genes=20, directed=False)
        for name in ("a", "b", "c")
    ]
    return Cell([f"g{i}" for i in range(20)], relations)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("rows_at_a_time", [0, 8])
def test_compiled_parts_are_compiled_once(cell: Cell, rows_at_a_time: int) -> None:
    torch.manual_seed(0)
    strategy = Shared(rows_at_a_time=rows_at_a_time)
    plain = HeteroCell(cell, hidden=16, layers=2, combine="pairwise", propagation=strategy)
    model = copy.deepcopy(plain)
    compiler = CompileCounterWithBackend("aot_eager")
    model.compile_row_wise(backend=compiler)
    counts = []
    for first in range(4):
        sets = [[first, first + 1, first + 3], [first + 2], [5, first + 6], [9, 8]]
        found = model(cell, Genotypes.of(sets)).score
        found.sum().backward()
        torch.testing.assert_close(found, plain(cell, Genotypes.of(sets)).score)
        counts.append(compiler.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 4
