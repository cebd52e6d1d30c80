"""The baselines: each equals its formula, learns what it can, and refuses what it must."""

from collections import Counter
from importlib import import_module
from itertools import combinations

import lightgbm
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from cells import random_cell, random_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Feature, Relation
from deltacell.models.baselines import (
    BASELINES,
    Additive,
    AdditivePair,
    BoostedTrees,
    GlobalMean,
    NearestProfiles,
    QueryPair,
    QueryPairMean,
    baseline,
    boosted_trees,
    low_rank,
)
from deltacell.models.baselines.additive import cross_fitted_effects, ridge
from deltacell.models.baselines.boosted_trees import network_columns, spectral_embedding
from deltacell.models.baselines.factorisation import solved_factors
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import Part
from deltacell.models.pairs import PairTrees
from deltacell.screen.genotypes import Genotypes

FAST = {"boosted_trees": {"rounds": 5}}
seeds = st.integers(0, 2**32 - 1)


def cell_of(n_genes, n_edges):
    """An undirected, a directed and an empty relation."""
    edges = {"physical": n_edges, "regulatory": n_edges, "empty": 0}
    return random_cell(n_genes, edges, directed=["regulatory"], weighted=True)


@pytest.fixture(scope="module")
def screen():
    scores = np.random.default_rng(1).normal(size=200)
    return cell_of(30, 135), Genotypes.of(random_sets(30, 200)), scores


@pytest.mark.parametrize("name", list(BASELINES))
def test_mixed_and_unseen_sizes_empty_batches_and_kinds_of_targets(refused, name, screen):
    cell, sets, targets = screen
    model, reported = baseline(name, **FAST.get(name, {})), []
    refused("not-fitted", model, cell, sets)
    model.fit(cell, sets, targets, progress=lambda *row: reported.append(row))
    assert all(0 <= done <= total for _, done, total in reported)
    score = model(cell, sets).score
    assert (score.dtype, score.shape) == (torch.float32, (200,))
    assert model(cell, Genotypes.of([])).score.shape == (0,)
    for same in (torch.from_numpy(targets), targets.tolist()):
        assert torch.equal(model.fit(cell, sets, same)(cell, sets).score, score)
    refused("other-cell", model, cell.subset(range(29)), Genotypes.of([[0]]))
    refused("bad-genotypes", model, cell, Genotypes.of([[30]]))
    model.fit(cell, Genotypes.of([[i, (i + 1) % 30] for i in range(30)]), np.arange(30) / 10)
    assert model(cell, Genotypes.of([[0], [1, 2], list(range(7))])).score.isfinite().all()
    model.fit(cell, Genotypes.of([[3, 4]]), [2.0])
    assert model(cell, Genotypes.of([[7]])).score.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("code", "sets", "targets"),
    [
        ("wrong-shape", [[0, 1]], [1.0, 2.0]),
        ("wrong-shape", [[0, 1]], [[1.0]]),
        ("not-finite", [[0, 1], [1, 2]], [1.0, np.nan]),
        ("empty-part", [], []),
        ("bad-genotypes", [[0, 30]], [1.0]),
    ],
)
def test_a_bad_part_leaves_it_unfitted(refused, screen, code, sets, targets):
    model = Additive().fit(*screen)
    refused(code, model.fit, screen[0], Genotypes.of(sets), targets)
    refused("not-fitted", model, *screen[:2])
    if sets:
        refused(code, Additive().fit, *screen, validation=(Genotypes.of(sets), targets))


def dense_ridge(indicators, targets, penalty):
    """Augmented least squares with an unpenalised intercept in front."""
    n_genes = indicators.shape[1]
    design = np.hstack([np.ones((len(indicators), 1)), indicators])
    shrink = np.hstack([np.zeros((n_genes, 1)), np.sqrt(penalty) * np.eye(n_genes)])
    goal = np.r_[targets, np.zeros(n_genes)]
    solution = np.linalg.lstsq(np.vstack([design, shrink]), goal, rcond=None)[0]
    return solution[0], solution[1:]


@settings(max_examples=40, deadline=None)
@given(seed=seeds, n=st.integers(1, 60), penalty=st.sampled_from([0.01, 3.0, 100.0]))
def test_closed_forms_equal_brute_force(seed, n, penalty):
    rng = np.random.default_rng(seed)
    n_genes = int(rng.integers(4, 20))
    cell = Cell([f"G{i:02d}" for i in rng.permutation(n_genes)], [])
    sets, wanted = random_sets(n_genes, n, seed=seed), random_sets(n_genes, 15, seed=seed + 1)
    indicators, asked = np.zeros((n, n_genes)), np.zeros((15, n_genes))
    for table, rows in ((indicators, sets), (asked, wanted)):
        for row, genes in enumerate(rows):
            table[row, genes] = 1
    targets = rng.normal(2.0, 1.0, n)
    part, asked_sets = (cell, Genotypes.of(sets), targets), Genotypes.of(wanted)
    intercept, effects = dense_ridge(indicators, targets, penalty)
    order = GeneOrder(cell.genes)
    found = ridge(Part(order.sets(part[1]), targets), n_genes, penalty)
    assert found.intercept == pytest.approx(intercept, abs=1e-6)
    np.testing.assert_allclose(found.effect[order.place], effects, atol=1e-6)
    assert (found.seen[order.place] == indicators.any(axis=0)).all()
    assert (found.effect[~found.seen] == 0).all()
    sums = intercept + asked @ effects
    additive = Additive(penalty).fit(*part)(cell, asked_sets)
    np.testing.assert_allclose(additive.score, sums, atol=1e-5)
    np.testing.assert_allclose(GlobalMean().fit(*part)(cell, asked_sets).score, targets.mean())
    expected = []
    for genes, prior in zip(wanted, sums, strict=True):
        near = [
            y
            for pair in combinations(genes, 2)
            for other, y in zip(sets, targets, strict=True)
            if set(pair) <= set(other)
        ]
        expected.append((0.5 * prior + sum(near)) / (0.5 + len(near)))
    fitted = QueryPairMean(0.5, penalty).fit(*part)
    np.testing.assert_allclose(fitted(cell, asked_sets).score, expected, atol=1e-5)


def pairs_of(genes):
    return list(combinations(sorted(genes), 2))


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_the_query_pair_is_the_one_that_most_genotypes_contain(seed):
    rng = np.random.default_rng(seed)
    n_genes = 12
    cell = Cell([f"G{i:02d}" for i in rng.permutation(n_genes)], [])
    sets = random_sets(n_genes, 60, sizes=(2, 3, 3), seed=seed)
    wanted = random_sets(n_genes, 30, sizes=(1, 2, 3, 4), seed=seed + 1)
    targets = rng.normal(size=60)
    count = Counter(pair for genes in sets for pair in pairs_of(genes))
    scores = {pair: [] for pair in count}
    for genes, score in zip(sets, targets, strict=True):
        most = max(count[pair] for pair in pairs_of(genes))
        for pair in pairs_of(genes):
            if count[pair] == most:
                scores[pair].append(score)
    expected = []
    for genes in wanted:
        known = [score for pair in pairs_of(genes) for score in scores.get(pair, ())]
        expected.append((2.0 * targets.mean() + sum(known)) / (2.0 + len(known)))
    fitted = QueryPair(2.0).fit(cell, Genotypes.of(sets), targets)
    np.testing.assert_allclose(fitted(cell, Genotypes.of(wanted)).score, expected, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_additive_pair_is_ridge_regression_on_genes_and_pairs(seed):
    rng = np.random.default_rng(seed)
    n_genes, penalty, pair_penalty = 9, 0.5, 2.0
    every_pair = list(combinations(range(n_genes), 2))
    cell = Cell([f"G{i:02d}" for i in range(n_genes)], [])
    sets, wanted = random_sets(n_genes, 50, seed=seed), random_sets(n_genes, 20, seed=seed + 1)
    targets = rng.normal(1.0, 1.0, 50)

    def indicators(rows):
        genes = [[gene in row for gene in range(n_genes)] for row in rows]
        pairs = [[set(pair) <= set(row) for pair in every_pair] for row in rows]
        return np.hstack([np.array(genes, float), np.array(pairs, float)])

    # A column that is multiplied by a factor has a penalty that is divided by its square.
    factors = np.repeat([1.0, np.sqrt(penalty / pair_penalty)], [n_genes, len(every_pair)])
    intercept, effects = dense_ridge(indicators(sets) * factors, targets, penalty)
    expected = intercept + indicators(wanted) * factors @ effects
    fitted = AdditivePair(penalty, pair_penalty).fit(cell, Genotypes.of(sets), targets)
    np.testing.assert_allclose(fitted(cell, Genotypes.of(wanted)).score, expected, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_nearest_profiles_equal_brute_force(seed):
    rng = np.random.default_rng(seed)
    n_genes = 10
    cell = Cell([f"G{i:02d}" for i in range(n_genes)], [])
    sets, targets = random_sets(n_genes, 40, seed=seed), rng.normal(size=40)
    wanted = random_sets(n_genes, 20, seed=seed + 1)
    additive = Additive().fit(cell, Genotypes.of(sets), targets)
    left = targets - additive(cell, Genotypes.of(sets)).score.numpy().astype(np.float64)
    scores, residuals, measured = np.zeros((3, n_genes, n_genes))
    for a, b in combinations(range(n_genes), 2):
        rows = [i for i, genes in enumerate(sets) if {a, b} <= set(genes)]
        if rows:
            scores[a, b] = scores[b, a] = targets[rows].mean()
            residuals[a, b] = residuals[b, a] = left[rows].mean()
            measured[a, b] = measured[b, a] = 1
    length = np.linalg.norm(scores, axis=1, keepdims=True)
    unit = scores / np.where(length > 0, length, 1)
    weights = np.maximum(unit @ unit.T, 0) ** 2
    np.fill_diagonal(weights, 0)

    def vote(a, b):
        total = weights[a] @ residuals[:, b] + weights[b] @ residuals[:, a]
        return total / (0.05 + weights[a] @ measured[:, b] + weights[b] @ measured[:, a])

    votes = [np.mean([vote(*pair) for pair in pairs_of(s)]) if len(s) > 1 else 0 for s in wanted]
    expected = additive(cell, Genotypes.of(wanted)).score.numpy() + votes
    fitted = NearestProfiles().fit(cell, Genotypes.of(sets), targets)
    np.testing.assert_allclose(fitted(cell, Genotypes.of(wanted)).score, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["matrix_factorisation", "low_rank", "nearest_profiles"])
def test_hidden_products_of_genes_are_learned_and_noise_is_not(name):
    """The scores of pairs are products of two hidden numbers per gene, and additive ones 0."""
    n_genes, rng = 60, np.random.default_rng(0)
    cell = Cell([f"G{i:02d}" for i in range(n_genes)], [])
    hidden = rng.choice([-1.0, 1.0], size=(n_genes, 2))
    pairs = np.array(list(combinations(range(n_genes), 2)))[rng.permutation(n_genes * 59 // 2)]
    train, validation, test = np.split(pairs, [900, 1300])
    score = (hidden[pairs[:, 0]] * hidden[pairs[:, 1]]).sum(axis=1)
    score_of = dict(zip(map(tuple, pairs.tolist()), score, strict=True))

    def pearson(change):
        truth = {pair: change(value) for pair, value in score_of.items()}

        def targets(rows):
            return [truth[tuple(row)] for row in rows.tolist()]

        model = baseline(name)
        held_out = (Genotypes.of(validation.tolist()), targets(validation))
        model.fit(cell, Genotypes.of(train.tolist()), targets(train), validation=held_out)
        predicted = model(cell, Genotypes.of(test.tolist())).score.numpy()
        # A pair that the validation part finds useless is left out, and the rest may be constant.
        return np.corrcoef(predicted, targets(test))[0, 1] if predicted.std() > 1e-6 else 0.0

    assert pearson(lambda value: value) > 0.9
    assert abs(pearson(lambda value: rng.normal())) < 4 / np.sqrt(len(test))


def test_factors_are_the_best_for_those_of_the_other_side():
    rng = np.random.default_rng(2)
    n_genes, rank = 12, 3
    dense_scores = np.where(rng.random((n_genes, n_genes)) < 0.4, rng.normal(size=(12, 12)), 0)
    factors, penalties = rng.normal(size=(n_genes, rank)), rng.random(n_genes) + 0.5
    dense_scores[5] = 0
    solved = solved_factors(sp.csr_array(dense_scores), factors, penalties)

    def loss(row, vector):
        measured = dense_scores[row] != 0
        errors = dense_scores[row, measured] - factors[measured] @ vector
        return (errors**2).sum() + penalties[row] * (vector**2).sum()

    for row in range(n_genes):
        for step in rng.normal(size=(20, rank)) * 1e-3:
            assert loss(row, solved[row]) <= loss(row, solved[row] + step)
    assert (solved[5] == 0).all()


@pytest.mark.parametrize("is_dense", [True, False])
def test_leading_eigenvectors_are_those_of_the_sum(monkeypatch, is_dense):
    monkeypatch.setattr(low_rank, "_SMALL_ENOUGH_FOR_DENSE", 256 if is_dense else 0)
    rng = np.random.default_rng(4)
    vectors = np.linalg.qr(rng.normal(size=(40, 2)))[0]
    first = low_rank.Eigen(vectors, np.array([30.0, -20.0]))
    noise = rng.normal(size=(40, 40)) / 10
    sparse = sp.csr_array(noise + noise.T)
    leading = low_rank.leading_eigen(sparse, first, 2)
    whole = sparse.toarray() + (vectors * first.values) @ vectors.T
    row, column = np.indices((40, 40)).reshape(2, -1)
    rebuilt = leading.entries(row, column).reshape(40, 40)
    values = np.sort(np.abs(np.linalg.eigvalsh(whole)))
    assert np.linalg.norm(whole - rebuilt, 2) == pytest.approx(values[-3], rel=1e-2)


def part_of(cell, sets, targets):
    return Part(GeneOrder(cell.genes).sets(Genotypes.of(sets)), targets)


def test_effects_are_cross_fitted_by_set_and_noise_is_not_learned():
    cell, rng = cell_of(60, 180), np.random.default_rng(5)
    sets, targets = random_sets(60, 1500, sizes=(2,)), rng.normal(size=1500)
    part = part_of(cell, sets, targets)
    leaked = ridge(part, 60, 3.0).effect[part.sets.genes]
    fair = cross_fitted_effects(part, 60, 3.0, folds=5, seed=0)
    follow = [np.corrcoef(part.sets.total(x), targets)[0, 1] for x in (leaked, fair)]
    assert follow[0] > 0.15
    assert follow[1] < 0.08
    trees = BoostedTrees(rounds=30).fit(cell, Genotypes.of(sets[:1000]), targets[:1000])
    score = trees(cell, Genotypes.of(sets[1000:])).score
    assert abs(np.corrcoef(score, targets[1000:])[0, 1]) < 4 / np.sqrt(500)
    # Repeats of a set share a fold: a change of one of them moves no effect of the others.
    repeats = [[0, 1], [1, 0], [2, 3], [1, 2], [0, 3], [1, 0]]
    one, other = (
        cross_fitted_effects(part_of(cell, repeats, y), 60, 3.0, folds=3, seed=0).reshape(-1, 2)
        for y in (np.arange(6.0), np.r_[100.0, np.arange(1.0, 6.0)])
    )
    np.testing.assert_array_equal(one[[0, 1, 5]], other[[0, 1, 5]])


@pytest.fixture
def recorded(monkeypatch):
    """The columns that reach the trees."""
    seen, dataset = [], lightgbm.Dataset

    def recorder(columns, *arguments, **options):
        seen.append(np.array(columns))
        return dataset(columns, *arguments, **options)

    monkeypatch.setattr(lightgbm, "Dataset", recorder)
    return seen


def test_own_score_never_reaches_own_columns_and_a_share_of_effects_is_forgotten(recorded):
    cell, sets = cell_of(60, 180), Genotypes.of(random_sets(60, 100))
    targets = np.random.default_rng(1).normal(size=100)
    for change in (0, 100):
        targets[17] += change
        BoostedTrees(rounds=1).fit(cell, sets, targets)
    before, after = recorded
    moved = (before != after) & ~(np.isnan(before) & np.isnan(after))
    assert not moved[17].any()
    assert moved.any()
    for sizes in ((1,), (2,), (2, 3)):
        some = Genotypes.of(random_sets(60, 900, sizes=sizes))
        trees = BoostedTrees(rounds=1, dimensions=2, forget=0.25).fit(cell, some, np.arange(900.0))
        assert trees(cell, sets).score.isfinite().all()
    known = recorded[3][:, -1]
    assert (2 - known).mean() / 2 == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("model", [BoostedTrees(rounds=4), PairTrees(rounds=4)])
def test_neither_blocks_nor_threads_change_a_score(monkeypatch, model):
    cell = cell_of(60, 180)
    sets = Genotypes.of([[i, j] for i in range(20) for j in range(i)])
    whole = model.fit(cell, sets, np.arange(190) / 10)(cell, sets).score
    monkeypatch.setattr(import_module(Part.__module__), "SETS_PER_BLOCK", 7)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fresh = type(model)(rounds=4).load_state_dict(cell, model.state_dict())
        # The first call makes what blocks share, and the second finds it.
        assert torch.equal(fresh(cell, sets).score, whole)
        assert torch.equal(fresh(cell, sets).score, whole)
    finally:
        torch.set_num_threads(before)


def test_the_effect_of_an_unseen_gene_is_missing():
    cell = cell_of(60, 180)
    sets = Genotypes.of([[i, j] for i in range(20) for j in range(i)])
    trees = BoostedTrees(rounds=2, forget=0).fit(cell, sets, np.arange(190) / 10)
    order = GeneOrder(cell.genes)
    asked, effect = order.sets(Genotypes.of([[0, 1], [0, 40], [40, 41]])), trees._learned["effect"]
    known = np.where(trees._learned["seen"], effect, np.nan)[asked.genes]
    low, high, known = trees._columns(asked, known)[:, -3:].T
    assert known.tolist() == [2, 1, 0]
    assert low[1] == high[1] == np.float32(effect[order.place[0]])
    assert low[0] < high[0]
    assert np.isnan([low[2], high[2]]).all()


def test_trees_learn_what_networks_and_features_say_of_unseen_genes():
    """Pairs score where they are neighbours, or by a feature that some genes do not have."""
    n, rng = 60, np.random.default_rng(0)
    plain = cell_of(n, 180)
    known, values = np.arange(n) % 10 != 9, rng.normal(size=(n, 1)) + 5
    profile = rng.normal(size=(n, 3)) @ rng.normal(size=(3, 50))
    features = [
        Feature(name, np.where(known[:, None], table, np.nan))
        for name, table in (("fitness", values), ("profile", profile))
    ]
    cell = Cell(plain.genes, plain.relations.values(), features=features)
    source, target, _ = plain.relation("physical").edges()
    neighbour = np.zeros((n, n))
    neighbour[source, target] = neighbour[target, source] = 1
    pairs = np.array([[i, j] for i in range(n) for j in range(i)])
    held = (pairs >= 45).any(axis=1)
    asked = held & known[pairs].all(axis=1)

    def pearson(model, cell, targets):
        model.fit(cell, Genotypes.of(pairs[~held]), targets[~held])
        score = model(cell, Genotypes.of(pairs[asked])).score
        return np.corrcoef(score, targets[asked])[0, 1]

    linked, told = neighbour[pairs[:, 0], pairs[:, 1]], values[pairs, 0].sum(axis=1)
    assert pearson(BoostedTrees(rounds=60), plain, linked) > 0.9
    assert pearson(Additive(), plain, linked) < 0.3
    # By default all features count.
    assert pearson(BoostedTrees(rounds=60), cell, told) > 0.9
    assert pearson(BoostedTrees(rounds=60), plain, told) < 0.8
    order = GeneOrder(cell.genes)
    table = BoostedTrees(feature_dimensions=4)._feature_tables(cell, order)["profile"]
    # Four components and the share of missing values; three directions hold a table of rank 3.
    assert table.shape == (n, 5)
    assert np.isnan(table[order.place[~known]]).all()
    rest = table[order.place[known]]
    assert rest[:, :3].std(axis=0).min() > 1e3 * rest[:, 3].std()


def test_trees_refuse_a_cell_with_other_relations(refused, screen):
    cell, sets, _ = screen
    trees = BoostedTrees(rounds=2).fit(*screen)
    for other in (cell.with_relations(["physical"]), cell_of(30, 270)):
        refused("other-cell", trees, other, sets)
        refused("other-cell", BoostedTrees().load_state_dict, other, trees.state_dict())
    assert torch.equal(trees(cell_of(30, 135), sets).score, trees(cell, sets).score)


def dense(relation):
    matrix = np.full((relation.n_genes, relation.n_genes), np.nan)
    source, target, weight = relation.entries()
    matrix[target, source] = weight
    return matrix


def brute_force(relations, embeddings, genes):
    """The columns of one set, from dense matrices and Python loops."""
    of_genes, of_pairs, pairs = [], [], list(combinations(genes, 2))
    for relation, embedding in zip(relations, embeddings, strict=True):
        weight = dense(relation)
        edge = ~np.isnan(weight)
        of_genes += [[embedding[g, i] for g in genes] for i in range(embedding.shape[1])]
        of_genes += [[edge[g].sum() for g in genes]]
        either = [[w for w in (weight[a, b], weight[b, a]) if w == w] for a, b in pairs]
        of_pairs += [[max(found) if found else 0.0 for found in either]]
        of_pairs += [[(edge[a] & edge[b]).sum() for a, b in pairs]]
        if relation.directed:
            of_genes += [[edge[:, g].sum() for g in genes]]
            of_pairs += [[(edge[:, a] & edge[:, b]).sum() for a, b in pairs]]
        of_pairs += [[embedding[a] @ embedding[b] for a, b in pairs]]
    columns = [
        how(values) if values else np.nan
        for values in [*of_genes, *of_pairs]
        for how in (min, max, np.mean)
    ]
    return [len(genes), *columns]


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(4, 14))
def test_network_columns_equal_brute_force(seed, n):
    rng = np.random.default_rng(seed)
    edges = dict(zip("ab", rng.integers(0, n * n // 2 + 1, 2), strict=True))
    cell = random_cell(n, edges, directed="b", weighted=True, seed=seed)
    relations = list(cell.relations.values())
    network = relations, [spectral_embedding(r, 3) for r in relations]
    sets = [sorted(s) for s in random_sets(n, 12, seed=seed)]
    ragged = GeneSets(np.concatenate(sets), np.cumsum([0, *map(len, sets)]))
    table = network_columns(ragged, *network)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, [brute_force(*network, s) for s in sets], atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted_trees, "_SETS_PER_BLOCK", 7)
        np.testing.assert_array_equal(network_columns(ragged, *network), table)
    np.testing.assert_array_equal(network_columns(ragged, [], [])[:, 0], ragged.sizes)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("iterated", [False, True])
def test_spectral_embedding_is_the_best_of_its_rank(directed, iterated, monkeypatch):
    n, d = 40, 4
    source, target = np.random.default_rng(3).integers(0, n, (2, 150))
    relation = Relation.from_edges("a", source, target, n_genes=n, directed=directed)
    if iterated:
        monkeypatch.setattr(boosted_trees, "_SMALL_ENOUGH_FOR_DENSE", 0)
    embedding = spectral_embedding(relation, d).astype(np.float64)
    edge, mean = (~np.isnan(dense(relation))).astype(float), relation.n_entries / n
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
    assert (targets[np.abs(targets).argmax(axis=0), range(d)] > 0).all()
    empty = Relation.from_edges("a", [], [], n_genes=5, directed=True)
    np.testing.assert_array_equal(spectral_embedding(empty, 3), np.zeros((5, 6)))
    edge = Relation.from_edges("a", [1], [3], n_genes=5, directed=False)
    not_0 = np.argwhere(spectral_embedding(edge, 8)).tolist()
    assert not_0 == [[1, 0], [1, 1], [3, 0], [3, 1]]
