"""Small random cells and screens for the baselines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deltacell.cell import Cell, Relation
from deltacell.screen.genotypes import Genotypes


def _cell(n_genes: int = 30, seed: int = 0, density: float = 0.15) -> Cell:
    rng = np.random.default_rng(seed)
    names = [f"G{i:03d}" for i in rng.permutation(n_genes)]
    relations = []
    for name, directed in (("physical", False), ("regulatory", True), ("empty", False)):
        n_edges = 0 if name == "empty" else int(density * n_genes**2)
        source, target = rng.integers(0, n_genes, (2, n_edges))
        relations.append(
            Relation.from_edges(
                name, source, target, rng.random(n_edges), n_genes=n_genes, directed=directed
            )
        )
    return Cell(names, relations)


def _sets(n_genes: int, n: int, seed: int = 0, sizes: tuple[int, ...] = (1, 2, 3, 4)) -> Genotypes:
    rng = np.random.default_rng(seed)
    return Genotypes.of(
        rng.choice(n_genes, rng.choice(sizes), replace=False).tolist() for _ in range(n)
    )


@pytest.fixture
def random_cell() -> Callable[..., Cell]:
    """A cell with an undirected, a directed and an empty relation, names in random order."""
    return _cell


@pytest.fixture
def random_sets() -> Callable[..., Genotypes]:
    """Genotypes of mixed sizes."""
    return _sets
