"""Examples of relations; their laws are in tests/laws/test_cell_laws.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Relation
from deltacell.counts import Counts
from deltacell.errors import InputError, StoreError


@pytest.fixture
def directed():
    return Relation.from_edges("regulatory", [0, 0, 3], [1, 2, 0], n_genes=4, directed=True)


def test_the_row_is_the_target_and_the_column_the_source(directed):
    matrix = directed.csr().to_dense()
    assert matrix[1, 0] == matrix[2, 0] == matrix[0, 3] == 1
    assert matrix.sum() == 3
    assert directed.csr() is directed.csr()
    assert directed.csr() is not directed.csr(weighted=True)
    assert directed.csr(dtype=torch.float64).dtype == torch.float64
    assert repr(directed) == "Relation('regulatory', directed, 3 edges, 4 genes)"


def test_an_undirected_relation_is_symmetric_and_an_edge_counts_once():
    weights = [0.5, 0.9, 0.1, 1.0, 0.2]
    edges = [0, 1, 2, 2, 1], [1, 0, 0, 2, 0], weights
    relation = Relation.from_edges("physical", *edges, n_genes=4, directed=False)
    matrix = relation.csr(weighted=True).to_dense()
    assert torch.equal(matrix, matrix.T)
    assert matrix[0, 1] == pytest.approx(0.9)
    assert (relation.n_edges, relation.n_entries, relation.n_connected) == (2, 4, 3)
    assert relation.transpose is relation
    dropped = {"self loop": 1, "duplicate": 1, "other direction of an edge": 1}
    assert relation.counts == Counts(5, 2, dropped)


@pytest.mark.parametrize(
    ("source", "target", "weight", "code"),
    [
        ([0], [4], None, "gene-index-outside"),
        ([-1], [0], None, "gene-index-outside"),
        ([0, 1], [1], None, "bad-shape"),
        ([0], [1], [1.0, 2.0], "bad-shape"),
        ([0], [1], [float("nan")], "not-finite"),
        ([0], [1], [float("inf")], "not-finite"),
    ],
)
def test_edges_that_cannot_be_are_refused(source, target, weight, code):
    with pytest.raises(InputError) as caught:
        Relation.from_edges("r", source, target, weight, n_genes=4, directed=True)
    assert caught.value.code == code


def test_taking_genes_renumbers_and_counts(directed):
    taken = directed.take(np.array([2, 0]))
    assert [column.tolist() for column in taken.edges()[:2]] == [[1], [0]]
    assert taken.counts == Counts(3, 1, {"outside the genes taken": 2})


def test_relations_over_different_genes_do_not_merge(directed):
    smaller = Relation.from_edges("small", [0], [1], n_genes=2, directed=True)
    for parts in ([directed, smaller], []):
        with pytest.raises(InputError) as caught:
            Relation.merge("all", parts)
        assert caught.value.code == "bad-merge"


def test_equal_means_name_direction_entries_and_weights(directed):
    renamed = directed.renamed("other")
    assert not renamed.equals(directed)
    assert renamed.renamed("regulatory").equals(directed)
    assert renamed.counts == directed.counts
    edges = [0, 0, 3], [1, 2, 0]
    for weight, is_directed in (([1, 1, 2], True), (None, False)):
        options = {"n_genes": 4, "directed": is_directed}
        assert not Relation.from_edges("regulatory", *edges, weight, **options).equals(directed)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 1, 2], [1, 2]),
        ([0, 1, 2], [1, -1]),
        ([0, 2, 1], [1]),
        ([0, 1, 3], [1, 0]),
        ([1, 1, 2], [1, 0]),
        ([], []),
    ],
)
def test_indices_from_disk_are_not_trusted(indptr, indices):
    # A sparse product would read beyond its memory.
    rows = np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int32)
    forged = Relation("forged", *rows, np.ones(len(indices), dtype=np.float32), directed=True)
    with pytest.raises(StoreError) as caught:
        Relation.from_arrow(forged.to_arrow(), "forged", directed=True, counts=Counts(0, 0))
    assert caught.value.code == "damaged"
