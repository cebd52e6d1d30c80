from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Relation
from deltacell.errors import InputError, StoreError


@pytest.fixture
def undirected():
    return Relation.from_edges(
        "physical", [0, 1, 2, 2, 1], [1, 0, 0, 2, 0], [0.5, 0.9, 0.1, 1.0, 0.2], n_genes=4,
        directed=False,
    )  # fmt: skip


@pytest.fixture
def directed():
    return Relation.from_edges("regulatory", [0, 0, 3], [1, 2, 0], n_genes=4, directed=True)


def test_the_row_is_the_target_and_the_column_the_source(directed):
    matrix = directed.csr().to_dense()
    assert matrix[1, 0] == matrix[2, 0] == matrix[0, 3] == 1
    assert matrix.sum() == 3
    assert directed.in_degree.tolist() == [1, 1, 1, 0]
    assert directed.out_degree.tolist() == [2, 0, 0, 1]


def test_an_undirected_relation_is_symmetric_and_an_edge_counts_once(undirected):
    matrix = undirected.csr(weighted=True).to_dense()
    assert torch.equal(matrix, matrix.T)
    assert matrix[0, 1] == pytest.approx(0.9)
    assert (undirected.n_edges, undirected.n_entries, undirected.n_connected) == (2, 4, 3)
    assert undirected.transpose is undirected
    assert undirected.edges().source.tolist() == [0, 0]
    assert undirected.edges().target.tolist() == [1, 2]


def test_what_was_dropped_is_counted(undirected):
    assert undirected.counts.to_json() == {
        "read": 5,
        "resolved": 5,
        "kept": 2,
        "dropped": {"self loop": 1, "duplicate": 1, "other direction of an edge": 1},
    }


def test_weights_below_zero_keep_the_largest():
    relation = Relation.from_edges("r", [0, 0], [1, 1], [-3, -2], n_genes=2, directed=True)
    assert relation.weights.tolist() == [-2]


def test_a_tensor_is_made_once_for_each_kind(directed):
    assert directed.csr() is directed.csr()
    assert directed.csr() is not directed.csr(weighted=True)
    assert directed.csr(dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize(
    ("source", "target", "weight", "message"),
    [
        ([0], [4], None, r"'r': gene index 4 is outside the cell, whose genes are 0 to 3"),
        ([-1], [0], None, "gene index -1"),
        ([0, 1], [1], None, "2 sources, 1 targets"),
        ([0], [1], [1.0, 2.0], "1 sources, 1 targets and 2 weights"),
        ([0], [1], [float("nan")], "not a finite number"),
        ([0], [1], [float("inf")], "not a finite number"),
    ],
)
def test_edges_that_cannot_be_are_refused(source, target, weight, message):
    with pytest.raises(InputError, match=message):
        Relation.from_edges("r", source, target, weight, n_genes=4, directed=True)


def test_taking_genes_renumbers_and_counts(directed):
    taken = directed.take(np.array([2, 0]))
    assert taken.edges().source.tolist() == [1]
    assert taken.edges().target.tolist() == [0]
    assert taken.counts.to_json() == {
        "read": 3,
        "resolved": 3,
        "kept": 1,
        "dropped": {"outside the genes taken": 2},
    }


def test_merging_a_directed_with_an_undirected_one_keeps_both_directions(directed, undirected):
    merged = Relation.merge("all", [directed, undirected])
    assert merged.directed
    pairs = set(zip(merged.edges().source.tolist(), merged.edges().target.tolist(), strict=True))
    assert pairs == {(0, 1), (1, 0), (0, 2), (2, 0), (3, 0)}
    weight = merged.csr(weighted=True).to_dense()
    assert weight[1, 0] == 1
    assert weight[0, 1] == pytest.approx(0.9)


def test_relations_over_different_genes_do_not_merge(directed):
    smaller = Relation.from_edges("small", [0], [1], n_genes=2, directed=True)
    with pytest.raises(InputError, match="'regulatory' 4, 'small' 2"):
        Relation.merge("all", [directed, smaller])
    with pytest.raises(InputError, match="nothing to merge"):
        Relation.merge("all", [])


def test_a_new_name_is_all_that_changes(directed):
    renamed = directed.renamed("other")
    assert not renamed.equals(directed)
    assert renamed.renamed("regulatory").equals(directed)
    assert renamed.counts == directed.counts


def test_equal_means_name_direction_entries_and_weights(directed):
    heavier = Relation.from_edges(
        "regulatory", [0, 0, 3], [1, 2, 0], [1, 1, 2], n_genes=4, directed=True
    )
    both_ways = Relation.from_edges("regulatory", [0, 0, 3], [1, 2, 0], n_genes=4, directed=False)
    assert not directed.equals(heavier)
    assert not directed.equals(both_ways)
    assert repr(directed) == "Relation('regulatory', directed, 3 edges, 4 genes)"


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 2], [1, 2], "an entry is outside the 2 genes"),
        ([0, 1, 2], [1, -1], "an entry is outside the 2 genes"),
        ([0, 2, 1], [1], "row pointers"),
        ([0, 1, 3], [1, 0], "row pointers"),
        ([1, 1, 2], [1, 0], "row pointers"),
        ([], [], "row pointers"),
    ],
)
def test_indices_from_disk_are_not_trusted(indptr, indices, message):
    # A sparse product would read beyond its memory.
    forged = Relation(
        "forged",
        np.array(indptr, dtype=np.int64),
        np.array(indices, dtype=np.int32),
        np.ones(len(indices), dtype=np.float32),
        directed=True,
    )
    with pytest.raises(StoreError, match=message):
        Relation.from_arrow(forged.to_arrow(), {**forged.describe()})
