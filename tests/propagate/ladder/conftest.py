"""A cell, a model and genotypes that all ways of the ladder are tried on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.screen import Genotypes


def _cell(seed: int) -> Cell:
    rng = np.random.default_rng(seed)
    relations = [
        Relation.from_edges(
            name, *rng.integers(0, 20, (2, n)), n_genes=20, directed=name == "directed"
        )
        for name, n in (("directed", 50), ("undirected", 60), ("empty", 0))
    ]
    return Cell([f"g{i}" for i in range(20)], relations)


@pytest.fixture
def cell_of() -> Callable[[int], Cell]:
    """A function from a seed to a cell of 20 genes with three relations, one of them empty."""
    return _cell


@pytest.fixture
def cell() -> Cell:
    return _cell(0)


@pytest.fixture
def model(cell: Cell) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=8, layers=2, local_heads=2)


@pytest.fixture
def genotypes() -> Genotypes:
    return Genotypes.of([[3], [0, 19], [5, 6, 7], [3]])
