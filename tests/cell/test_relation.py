"""Examples of relations; their laws are in tests/laws/test_cell_laws.py."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Relation
from deltacell.counts import Counts


@pytest.fixture
def directed():
    return Relation.from_edges("regulatory", [0, 0, 3], [1, 2, 0], n_genes=4, directed=True)


def test_the_row_is_the_target_and_the_column_the_source(directed):
    assert directed.indptr.tolist() == [0, 1, 2, 3, 3]
    assert directed.indices.tolist() == [3, 0, 0]
    assert repr(directed) == "Relation('regulatory', directed, 3 edges, 4 genes)"


@pytest.mark.parametrize(
    ("source", "target", "weight"),
    [
        *(([0], [4], None), ([-1], [0], None), ([0, 1], [1], None), ([0], [1], [1.0, 2.0])),
        *(([0], [1], [float("nan")]), ([0], [1], [float("inf")])),
    ],
)
def test_edges_that_cannot_be_are_refused(source, target, weight, refused):
    given = "r", source, target, weight
    refused("bad-edges", Relation.from_edges, *given, n_genes=4, directed=True)


def test_taking_genes_counts_what_is_left_out(directed):
    taken = directed.take(np.array([2, 0]))
    assert taken.counts == Counts(3, 1, {"outside the genes taken": 2})


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        *(([0, 1, 2], [1, 2]), ([0, 1, 2], [1, -1]), ([0, 2, 1], [1])),
        *(([0, 1, 3], [1, 0]), ([1, 1, 2], [1, 0]), ([], [])),
    ],
)
def test_indices_from_disk_are_not_trusted(indptr, indices, refused):
    # A sparse product would read beyond its memory.
    rows = np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int32)
    forged = Relation("forged", *rows, np.ones(len(indices), dtype=np.float32), directed=True)
    options = {"directed": True, "counts": Counts(0, 0)}
    refused("damaged", Relation.from_arrow, forged.to_arrow(), "forged", **options)
