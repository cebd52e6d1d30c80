"""Compiled row-wise parts: the same results, and no recompilation from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from deltacell import Cell, Genotypes, Relation
from deltacell.models import Dango

RELATIONS = ("a", "b")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _cell(n: int = 30) -> Cell:
    rng = np.random.default_rng(0)
    return Cell(
        [f"Y{i}" for i in range(n)],
        [
            Relation.from_edges(name, *rng.integers(0, n, (2, 60)), n_genes=n, directed=False)
            for name in RELATIONS
        ],
    )


def _model(cell: Cell) -> Dango:
    torch.manual_seed(0)
    return Dango(cell, RELATIONS, dict.fromkeys(RELATIONS, 1.0), hidden=8)


def _step(model: Dango, cell: Cell, sets: list[list[int]]) -> torch.Tensor:
    score = model(cell, Genotypes.of(sets)).score
    score.square().sum().backward()
    return score.detach()


BATCHES = [
    [[i, i + 1, i + 2] for i in range(8)],
    [[0], [1, 2, 3, 4, 5], *([i, i + 1, i + 2] for i in range(6))],
    [[0, 2], [1, 3, 4, 5], *([i, i + 2, i + 7] for i in range(6))],
    [[i + 2, i + 1, i] for i in range(8)],
]
"""Of eight genotypes and 24 genes each; eight is the model's width too."""

OTHER_BATCHES = [[[1, 2], [3]], [[i, i + 1, i + 2] for i in range(19)]]
"""Of other numbers of genotypes and genes."""


def _compilations(batches: list[list[list[int]]], **options: object) -> list[int]:
    """Return how many graphs were compiled after each batch; results are compared on the way."""
    cell = _cell()
    plain, compiled = _model(cell), _model(cell)
    compiled.compile_row_wise(**options)
    seen = []
    for sets in batches:
        torch.testing.assert_close(_step(compiled, cell, sets), _step(plain, cell, sets))
        seen.append(counters["stats"]["unique_graphs"])
    for mine, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)
    return seen


def test_nothing_is_compiled_again_for_another_batch() -> None:
    seen = _compilations([*BATCHES, *OTHER_BATCHES], backend="eager")
    assert seen[0] == 2
    assert seen == [2] * len(seen)


def test_nothing_breaks_the_graph() -> None:
    _compilations(BATCHES[:1], backend="eager", fullgraph=True)


@pytest.mark.slow
def test_the_real_compiler() -> None:
    seen = _compilations([*BATCHES, *OTHER_BATCHES])
    assert seen == [2] * len(seen)
