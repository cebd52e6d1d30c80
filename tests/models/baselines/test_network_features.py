from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Relation
from deltacell.models.baselines import network_features
from deltacell.models.baselines.gene_sets import GeneSets
from deltacell.models.baselines.network_features import NetworkFeatures
from deltacell.models.baselines.spectral import spectral_embedding


def random_relation(rng, n, name, directed):
    n_edges = int(rng.integers(0, n * n // 2 + 1))
    source, target = rng.integers(0, n, (2, n_edges))
    return Relation.from_edges(
        name, source, target, rng.uniform(-1, 1, n_edges), n_genes=n, directed=directed
    )


def dense(relation):
    matrix = np.full((relation.n_genes, relation.n_genes), np.nan)
    source, target, weight = relation.entries()
    matrix[target, source] = weight
    return matrix


def sorted_sets(rng, n, count):
    sets = [
        sorted(rng.choice(n, rng.integers(1, min(5, n) + 1), replace=False)) for _ in range(count)
    ]
    offsets = np.cumsum([0, *map(len, sets)])
    return sets, GeneSets(np.concatenate(sets).astype(np.int64), offsets)


def gene_columns(relation, embedding, d):
    """What is said of a gene, by name."""
    edge = ~np.isnan(dense(relation))
    if not relation.directed:
        spectral = {f"spectral{i}": lambda g, i=i: embedding[g, i] for i in range(d)}
        return spectral | {"degree": lambda g: edge[g].sum()}
    targets = {f"target{i}": lambda g, i=i: embedding[g, i] for i in range(d)}
    sources = {f"source{i}": lambda g, i=i: embedding[g, d + i] for i in range(d)}
    degrees = {"in_degree": lambda g: edge[g].sum(), "out_degree": lambda g: edge[:, g].sum()}
    return targets | sources | degrees


def pair_columns(relation, embedding):
    """What is said of a pair of genes, by name."""
    weight = dense(relation)
    edge = ~np.isnan(weight)
    columns = {
        "weight": lambda a, b: max(
            (w for w in (weight[a, b], weight[b, a]) if not np.isnan(w)), default=0.0
        ),
        "product": lambda a, b: embedding[a] @ embedding[b],
    }
    if not relation.directed:
        return columns | {"common_neighbours": lambda a, b: (edge[a] & edge[b]).sum()}
    return columns | {
        "common_sources": lambda a, b: (edge[a] & edge[b]).sum(),
        "common_targets": lambda a, b: (edge[:, a] & edge[:, b]).sum(),
    }


def brute_force(features, genes):
    """The columns of one set by their names, from dense matrices and Python loops."""
    pairs = list(combinations(genes, 2))
    expected = {"size": len(genes)}
    for relation, embedding in zip(features.relations, features.embeddings, strict=True):
        of_gene = gene_columns(relation, embedding, features.dimensions)
        of_pair = pair_columns(relation, embedding)
        for how, function in (("min", min), ("max", max), ("mean", np.mean)):
            for name, value in of_gene.items():
                expected[f"{relation.name}.{name}.{how}"] = function([value(g) for g in genes])
            for name, value in of_pair.items():
                expected[f"{relation.name}.{name}.{how}"] = (
                    function([value(a, b) for a, b in pairs]) if pairs else np.nan
                )
    return expected


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 14))
def test_equals_brute_force(seed, n):
    rng = np.random.default_rng(seed)
    relations = [random_relation(rng, n, name, name == "b") for name in "ab"]
    features = NetworkFeatures(relations, n, dimensions=3)
    sets, ragged = sorted_sets(rng, n, 12)
    table = features(ragged)
    assert table.dtype == np.float32
    for row, genes in zip(table, sets, strict=True):
        expected = brute_force(features, genes)
        assert set(expected) == set(features.names)
        np.testing.assert_allclose(row, [expected[name] for name in features.names], atol=1e-5)


def test_small_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    relations = [random_relation(rng, 20, name, name == "b") for name in "ab"]
    _, sets = sorted_sets(rng, 20, 100)
    whole = NetworkFeatures(relations, 20)(sets)
    monkeypatch.setattr(network_features, "_SETS_A_BLOCK", 7)
    monkeypatch.setattr(network_features, "_ENTRIES_A_BLOCK", 5)
    np.testing.assert_array_equal(NetworkFeatures(relations, 20)(sets), whole)


def test_chosen_aggregates():
    rng = np.random.default_rng(0)
    relation = random_relation(rng, 10, "a", False)
    _, sets = sorted_sets(rng, 10, 20)
    every = NetworkFeatures([relation], 10, dimensions=2)
    some = NetworkFeatures(
        [relation], 10, dimensions=2, over_genes=("min", "max"), over_pairs=("mean",)
    )
    assert some.names[:3] == ["size", "a.spectral0.min", "a.spectral0.max"]
    assert some.names[-1] == "a.product.mean"
    at = [every.names.index(name) for name in some.names]
    np.testing.assert_array_equal(some(sets), every(sets)[:, at])


def test_without_relations():
    _, sets = sorted_sets(np.random.default_rng(0), 5, 4)
    np.testing.assert_array_equal(NetworkFeatures([], 5)(sets)[:, 0], sets.sizes)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("iterated", [False, True])
def test_spectral_embedding_is_the_best_of_its_rank(directed, iterated, monkeypatch):
    rng = np.random.default_rng(3)
    n, d = 40, 4
    source, target = rng.integers(0, n, (2, 150))
    relation = Relation.from_edges("a", source, target, n_genes=n, directed=directed)
    if iterated:
        monkeypatch.setattr("deltacell.models.baselines.spectral._SMALL_ENOUGH_FOR_DENSE", 0)
    embedding = spectral_embedding(relation, d).astype(np.float64)
    edge = (~np.isnan(dense(relation))).astype(float)
    mean = relation.n_entries / n
    normal = edge / np.sqrt(edge.sum(1) + mean)[:, None] / np.sqrt(edge.sum(0) + mean)
    left, values, right = np.linalg.svd(normal)
    best = left[:, :d] * values[:d] @ right[:d]
    targets, sources = embedding[:, :d], embedding[:, -d:]
    if directed:
        np.testing.assert_allclose(targets @ sources.T, best, atol=1e-5)
        np.testing.assert_allclose(targets.T @ targets, sources.T @ sources, atol=1e-5)
    else:
        vectors = targets / np.linalg.norm(targets, axis=0)
        sign = np.sign(np.diag(vectors.T @ normal @ vectors))
        np.testing.assert_allclose(targets * sign @ targets.T, best, atol=1e-5)
    largest = np.abs(targets).argmax(axis=0)
    assert (targets[largest, range(d)] > 0).all()


def test_spectral_embedding_of_little():
    empty = Relation.from_edges("a", [], [], n_genes=5, directed=True)
    np.testing.assert_array_equal(spectral_embedding(empty, 3), np.zeros((5, 6)))
    edge = Relation.from_edges("a", [1], [3], n_genes=5, directed=False)
    embedding = spectral_embedding(edge, 8)
    assert embedding.shape == (5, 8)
    assert (embedding[[0, 2, 4]] == 0).all()
    assert (embedding[:, 2:] == 0).all()
    assert (embedding[[1, 3], :2] != 0).all()
