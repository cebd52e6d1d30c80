"""A small cell with a screen, its split, and screens made row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deltacell.cell import Cell, Genes, Relation
from deltacell.evaluate import Bootstrap, baselines, evaluate
from deltacell.screen import Coverage, Genotypes, Screen, Split, StudyCoverage


@pytest.fixture(scope="session")
def cell() -> Cell:
    return Cell.synthetic("demo")


@pytest.fixture(scope="session")
def screen(cell: Cell) -> Screen:
    return Screen.synthetic(cell, n=1_500)


@pytest.fixture(scope="session")
def split(screen: Screen) -> Split:
    return Split.gene(screen, seed=0)


@pytest.fixture(scope="session")
def predictions(cell: Cell, screen: Screen, split: Split) -> dict[str, Any]:
    made: dict[str, Any] = dict(
        baselines(cell, screen, split, ["global_mean", "additive", "query_pair_mean"])
    )
    truth = screen.column("score")[split.test].astype(float)
    rng = np.random.default_rng(0)
    made["good"] = {s: truth + 0.1 * rng.normal(size=len(truth)) for s in (0, 5)}
    made["shuffled"] = rng.permutation(truth)
    return made


@pytest.fixture(scope="session")
def evaluation(cell: Cell, screen: Screen, split: Split, predictions: dict[str, Any]) -> Any:
    return evaluate(cell, screen, split, predictions, bootstrap=Bootstrap(200))


@pytest.fixture
def plain_cell() -> Cell:
    """Ten genes and a relation of one edge."""
    relation = Relation.from_edges("r", [0], [1], n_genes=10, directed=False)
    return Cell(Genes([f"g{i}" for i in range(10)]), [relation])


@pytest.fixture
def pairs(plain_cell: Cell) -> Callable[..., Screen]:
    """A screen of the pairs 0 1, 0 2, … in order, from its columns."""

    def made(score: Any, *, complete: bool | None = None, **columns: Any) -> Screen:
        sets = [(i, j) for i in range(10) for j in range(i + 1, 10)][: len(score)]
        genes = np.arange(10)
        coverage = (
            None
            if complete is None
            else Coverage((StudyCoverage("s", genes, np.arange(11), genes, complete),))
        )
        return Screen.build(
            plain_cell.genes,
            Genotypes.of(sets),
            coverage=coverage,
            score=np.asarray(score, dtype=np.float32),
            study="s",
            **columns,
        )

    return made
