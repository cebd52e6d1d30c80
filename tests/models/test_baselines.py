"""The baselines: each equals its formula, learns what it can, and refuses what it must."""

from __future__ import annotations

from itertools import combinations

import lightgbm
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Feature, Genes, Relation
from deltacell.errors import InputError
from deltacell.models.baselines import (
    BASELINES,
    Additive,
    BoostedTrees,
    EmbeddingMLP,
    GlobalMean,
    QueryPairMean,
    baseline,
    network_features,
)
from deltacell.models.baselines.additive import cross_fitted_effects, ridge
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.baselines.network_features import NetworkFeatures, spectral_embedding
from deltacell.screen.genotypes import Genotypes

FAST = {"embedding_mlp": {"epochs": 2, "width": 8}, "boosted_trees": {"rounds": 5}}
seeds = st.integers(0, 2**32 - 1)


def random_cell(n_genes=30, density=0.15):
    """An undirected, a directed and an empty relation, names in random order."""
    rng = np.random.default_rng(0)
    names = [f"G{i:03d}" for i in rng.permutation(n_genes)]
    relations = []
    for name, directed in (("physical", False), ("regulatory", True), ("empty", False)):
        n_edges = 0 if name == "empty" else int(density * n_genes**2)
        edges, weights = rng.integers(0, n_genes, (2, n_edges)), rng.random(n_edges)
        relations.append(
            Relation.from_edges(name, *edges, weights, n_genes=n_genes, directed=directed)
        )
    return Cell(names, relations)


def random_sets(n_genes, n, sizes=(1, 2, 3, 4), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(n_genes, rng.choice(sizes), replace=False).tolist() for _ in range(n)]


@pytest.fixture(params=list(BASELINES))
def any_baseline(request):
    return baseline(request.param, **FAST.get(request.param, {}))


@pytest.fixture(scope="module")
def screen():
    return (
        random_cell(),
        Genotypes.of(random_sets(30, 200)),
        np.random.default_rng(1).normal(size=200),
    )


def refused(call, *arguments, **options):
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_mixed_and_unseen_sizes_empty_batches_and_kinds_of_targets(any_baseline, screen):
    cell, sets, targets = screen
    reported = []
    assert refused(any_baseline, cell, sets) == "not-fitted"
    fitted = any_baseline.fit(cell, sets, targets, progress=lambda *row: reported.append(row))
    assert fitted is any_baseline
    assert all(0 <= done <= total for _, done, total in reported)
    score = any_baseline(cell, sets).score
    assert (score.dtype, score.shape) == (torch.float32, (200,))
    assert any_baseline(cell, Genotypes.of([])).score.shape == (0,)
    for same in (torch.from_numpy(targets), targets.tolist()):
        assert torch.equal(any_baseline.fit(cell, sets, same)(cell, sets).score, score)
    assert refused(any_baseline, cell.subset(range(29)), Genotypes.of([[0]])) == "other-cell"
    refused(any_baseline, cell, Genotypes.of([[30]]))
    pairs = Genotypes.of([[i, (i + 1) % 30] for i in range(30)])
    any_baseline.fit(cell, pairs, np.arange(30) / 10)
    assert any_baseline(cell, Genotypes.of([[0], [1, 2], list(range(7))])).score.isfinite().all()
    any_baseline.fit(cell, Genotypes.of([[3, 4]]), [2.0])
    # One gene of MLP noise aside, all that is known is the mean.
    assert any_baseline(cell, Genotypes.of([[7]])).score.item() == pytest.approx(2.0, abs=1.0)


@pytest.mark.parametrize("name", list(BASELINES))
def test_weights_count(name, screen):
    patient = {"epochs": 60, "patience": 60, "width": 8, "learning_rate": 1e-2}
    model = baseline(name, **(patient if name == "embedding_mlp" else {}))
    weights, values = np.repeat([0.0, 1.0], 20), np.repeat([5.0, -1.0], 20)
    model.fit(screen[0], Genotypes.of([[0, 1]] * 40), values, weights)
    score = model(screen[0], Genotypes.of([[0, 1]])).score
    assert score.item() == pytest.approx(-1.0, abs=0.2)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("wrong-shape", lambda s, t, w: (s, t[:-1], w)),
        ("wrong-shape", lambda s, t, w: (s, t[:, None], w)),
        ("wrong-shape", lambda s, t, w: (s, t, w[:-1])),
        ("not-finite", lambda s, t, w: (s, np.r_[t[:-1], np.nan], w)),
        ("wrong-weights", lambda s, t, w: (s, t, -w)),
        ("wrong-weights", lambda s, t, w: (s, t, 0 * w)),
        ("empty-part", lambda s, t, w: (Genotypes.of([]), [], [])),
        (None, lambda s, t, w: (Genotypes.of([[0, 30]]), [1.0], [1.0])),
        (None, lambda s, t, w: (Genotypes.of([[0, 0]]), [1.0], [1.0])),
        (None, lambda s, t, w: (Genotypes.of([[0], []]), [1.0, 1.0], None)),
    ],
)
def test_a_bad_training_part_leaves_it_unfitted(screen, code, change):
    cell, sets, targets = screen
    model = Additive().fit(cell, sets, targets)
    found = refused(model.fit, cell, *change(sets, targets, np.ones(200)))
    assert code is None or found == code
    assert refused(model.effects, cell) == "not-fitted"
    assert refused(Additive().fit, *screen, validation=(sets, [1.0])) == "wrong-shape"


def test_bad_parameters():
    for name, parameters in {
        "additive": {"penalty": float("nan")},
        "query_pair_mean": {"shrinkage": -1, "penalty": 0},
        "embedding_mlp": {"width": 0, "forget": 1.0, "learning_rate": 0, "weight_decay": -1},
        "boosted_trees": {"rounds": 0, "folds": 1, "learning_rate": 2, "forget": -0.1},
    }.items():
        for parameter, value in parameters.items():
            assert refused(baseline, name, **{parameter: value}) == "out-of-range"
    assert refused(baseline, "aditive") == "unknown-choice"
    assert refused(QueryPairMean, toward="median") == "unknown-choice"


def dense_ridge(indicators, targets, weights, penalty):
    """Augmented least squares with an unpenalised intercept in front."""
    n_genes = indicators.shape[1]
    root = np.sqrt(weights)[:, None]
    design = np.hstack([np.ones((len(indicators), 1)), indicators]) * root
    shrink = np.hstack([np.zeros((n_genes, 1)), np.sqrt(penalty) * np.eye(n_genes)])
    goal = np.r_[targets * root[:, 0], np.zeros(n_genes)]
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
    targets, weights = rng.normal(2.0, 1.0, n), rng.uniform(0.1, 3.0, n)
    part = cell, Genotypes.of(sets), targets, weights
    additive = Additive(penalty).fit(*part)
    intercept, effects = dense_ridge(indicators, targets, weights, penalty)
    assert additive.intercept == pytest.approx(intercept, abs=1e-6)
    np.testing.assert_allclose(additive.effects(cell), effects, atol=1e-6)
    assert (additive.effects(cell)[~indicators.any(axis=0)] == 0).all()
    sums, mean = intercept + asked @ effects, np.average(targets, weights=weights)
    np.testing.assert_allclose(additive(cell, Genotypes.of(wanted)).score, sums, atol=1e-5)
    np.testing.assert_allclose(GlobalMean().fit(*part)(cell, Genotypes.of(wanted)).score, mean)
    for toward, prior in (("additive", sums), ("mean", np.full(15, mean))):
        fitted = QueryPairMean(0.5, toward, penalty).fit(*part)
        expected = []
        for genes, y0 in zip(wanted, prior, strict=True):
            total, weight = 0.5 * y0, 0.5
            for pair in combinations(genes, 2):
                for other, y, w in zip(sets, targets, weights, strict=True):
                    if set(pair) <= set(other):
                        total, weight = total + w * y, weight + w
            expected.append(total / weight)
        np.testing.assert_allclose(fitted(cell, Genotypes.of(wanted)).score, expected, atol=1e-5)


NAMES = Genes(["YBR2", "yal1", "YCL9", "YAR5"])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), max_size=8), st.data())
def test_gene_sets(given_sets, data):
    order = GeneOrder(NAMES)
    assert order.names == ["YAL1", "YAR5", "YBR2", "YCL9"]
    assert (order.gene.tolist(), order.place.tolist()) == ([1, 3, 0, 2], [2, 0, 3, 1])
    sets = order.sets(Genotypes.of(given_sets))
    expected = [sorted(order.place[s]) for s in given_sets]

    def listed(sets):
        return [list(sets.genes[a:b]) for a, b in zip(sets.offsets, sets.offsets[1:], strict=False)]

    assert listed(sets) == expected
    pairs = sets.pairs()
    found = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert found == [pair for s in expected for pair in combinations(s, 2)]
    assert np.diff(pairs.offsets).tolist() == [len(s) * (len(s) - 1) // 2 for s in expected]
    assert [np.flatnonzero(row).tolist() for row in sets.indicators(4).toarray()] == expected
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1))) if expected else []
    assert listed(sets.take(np.array(rows, dtype=np.int64))) == [expected[r] for r in rows]
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert listed(sets.slice(start, stop)) == expected[start:stop]


@pytest.fixture(scope="module")
def planted():
    """Genes of two classes; a pair scores high where they differ in class."""
    rng = np.random.default_rng(0)
    kind = rng.permutation(np.repeat([0, 1], 20))
    pairs = rng.permutation(np.array([[i, j] for i in range(40) for j in range(i)]))
    targets = 3.0 * (kind[pairs[:, 0]] != kind[pairs[:, 1]]) + 0.1 * rng.normal(size=len(pairs))
    return Cell([f"G{i:02d}" for i in range(40)], []), pairs, targets


def mlp(**parameters):
    chosen = {"width": 16, "batch_size": 32, "learning_rate": 1e-2, "epochs": 40, "patience": 40}
    return EmbeddingMLP(**(chosen | parameters))


def test_mlp_learns_what_no_sum_of_effects_can_and_stops_by_the_validation_part(planted):
    cell, pairs, targets = planted
    sets, held = Genotypes.of(pairs[:600]), Genotypes.of(pairs[600:])
    before = torch.random.get_rng_state()
    opposite = targets.mean() * 2 - targets[600:]

    def score_and_epochs(validation, **parameters):
        epochs = []
        fitted = mlp(**parameters).fit(
            cell,
            sets,
            targets[:600],
            validation=(held, validation),
            progress=lambda what, done, total: epochs.append(done),
        )
        return fitted(cell, held).score.numpy(), len(epochs)

    learned, all_epochs = score_and_epochs(targets[600:])
    assert np.corrcoef(learned, targets[600:])[0, 1] > 0.9
    # Against scores opposite to those of training, learning more only makes it worse.
    stopped, few_epochs = score_and_epochs(opposite, patience=3)
    assert few_epochs < all_epochs == 40
    assert np.mean((stopped - opposite) ** 2) < np.mean((learned - opposite) ** 2) / 2
    assert torch.equal(before, torch.random.get_rng_state())


def test_genes_unseen_by_the_mlp_share_a_vector(planted):
    cell, pairs, targets = planted
    known = (pairs < 35).all(axis=1)
    part = cell, Genotypes.of(pairs[known]), targets[known]
    score = mlp(forget=0.3).fit(*part)(cell, Genotypes.of([[0, 35], [0, 36], [37], [38]])).score
    assert score[0] == score[1]
    assert score[2] == score[3]
    # One gene of a pair says nothing of whether two differ.
    assert score[0].item() == pytest.approx(targets[known].mean(), abs=0.5)
    constant = mlp(epochs=5).fit(cell, Genotypes.of(pairs), np.full(len(pairs), 4.0))
    np.testing.assert_allclose(constant(cell, Genotypes.of(pairs)).score, 4.0, atol=0.5)


@pytest.mark.parametrize("make", [lambda: mlp(epochs=2), lambda: BoostedTrees(rounds=10)])
def test_the_seed_decides(planted, make):
    cell, pairs, targets = planted
    sets = Genotypes.of(pairs)
    one, again, other = (
        make().fit(cell, sets, targets, seed=seed)(cell, sets).score for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def part_of(cell, sets, targets):
    return Part(GeneOrder(cell.genes).sets(Genotypes.of(sets)), targets, np.ones(len(targets)))


def test_effects_are_cross_fitted_by_set_and_noise_is_not_learned():
    cell, rng = random_cell(60, density=0.05), np.random.default_rng(5)
    sets, targets = random_sets(60, 1500, sizes=(2,)), rng.normal(size=1500)
    part = part_of(cell, sets, targets)
    leaked = ridge(part, 60, 3.0).effect[part.sets.genes]
    fair = cross_fitted_effects(part, 60, 3.0, folds=5, seed=0)

    def followed(effects):
        return np.corrcoef(np.add.reduceat(effects, part.sets.offsets[:-1]), targets)[0, 1]

    assert followed(leaked) > 0.15
    assert followed(fair) < 0.08
    trees = BoostedTrees(rounds=30).fit(cell, Genotypes.of(sets[:1000]), targets[:1000])
    score = trees(cell, Genotypes.of(sets[1000:])).score
    assert abs(np.corrcoef(score, targets[1000:])[0, 1]) < 4 / np.sqrt(500)
    # Repeats of a set share a fold: a change of one of them moves no effect of the others.
    repeats = [[0, 1], [1, 0], [2, 3], [1, 2], [0, 3], [1, 0]]
    one, other = (
        cross_fitted_effects(part_of(cell, repeats, y), 60, 3.0, folds=3, seed=0)
        for y in (np.arange(6.0), np.r_[100.0, np.arange(1.0, 6.0)])
    )
    for row in (0, 1, 5):
        np.testing.assert_array_equal(one[2 * row : 2 * row + 2], other[2 * row : 2 * row + 2])


@pytest.fixture
def recorded(monkeypatch):
    """The columns that reach the trees."""
    seen, dataset = [], lightgbm.Dataset

    def recorder(columns, *arguments, **options):
        seen.append(np.array(columns))
        return dataset(columns, *arguments, **options)

    monkeypatch.setattr(lightgbm, "Dataset", recorder)
    return seen


def test_own_score_never_reaches_own_columns(recorded):
    cell, sets = random_cell(60, density=0.05), Genotypes.of(random_sets(60, 100))
    targets = np.random.default_rng(1).normal(size=100)
    for change in (0, 100):
        targets[17] += change
        BoostedTrees(rounds=1).fit(cell, sets, targets)
    before, after = recorded
    moved = (before != after) & ~(np.isnan(before) & np.isnan(after))
    assert not moved[17].any()
    assert moved.any()


def test_columns_by_size_and_forgotten_effects(recorded):
    cell, every_size = random_cell(60, density=0.05), Genotypes.of(random_sets(60, 50))
    for sizes, forget in (((1,), 0.0), ((2,), 0.25), ((2, 3), 0.0)):
        sets = Genotypes.of(random_sets(60, 900, sizes=sizes))
        trees = BoostedTrees(rounds=1, dimensions=2, forget=forget)
        trees.fit(cell, sets, np.arange(900.0))
        assert trees(cell, every_size).score.isfinite().all()
    genes, pairs = (2 + 1) + (4 + 2) + (2 + 1), 3 + 4 + 3
    widths = [columns.shape[1] for columns in recorded]
    assert widths == [3 + genes, 4 + 2 * genes + pairs, 5 + 3 * genes + 3 * pairs]
    assert np.isfinite(recorded[1][:, 1 + 2 * genes : -3]).all()
    np.testing.assert_array_equal(recorded[2][:, -1], recorded[2][:, 0])
    assert (2 - recorded[1][:, -1]).mean() / 2 == pytest.approx(0.25, abs=0.04)


def test_the_effect_of_an_unseen_gene_is_missing_and_no_zero(monkeypatch):
    cell = random_cell(60, density=0.05)
    sets = Genotypes.of([[i, j] for i in range(20) for j in range(i)])
    trees = BoostedTrees(rounds=2, forget=0).fit(cell, sets, np.arange(190) / 10)
    whole, asked, seen = trees(cell, sets).score, Genotypes.of([[0, 1], [0, 40], [40, 41]]), []
    module = "deltacell.models.baselines.boosted_trees"
    monkeypatch.setattr(f"{module}._SETS_PER_BLOCK", 7)
    assert torch.equal(trees(cell, sets).score, whole)
    monkeypatch.setattr(
        f"{module}.predicted", lambda trees, columns: seen.append(columns) or np.zeros(len(columns))
    )
    trees(cell, asked)
    low, high, known = seen[0][:, -3:].T
    assert known.tolist() == [2, 1, 0]
    assert low[1] == high[1] == np.float32(trees._effects.effect[GeneOrder(cell.genes).place[0]])
    assert low[0] < high[0]
    assert np.isnan([low[2], high[2]]).all()


def test_trees_learn_what_networks_and_features_say_of_unseen_genes():
    """Pairs score where they are neighbours, or by a feature that some genes do not have."""
    n, rng = 60, np.random.default_rng(0)
    plain = random_cell(n, density=0.05)
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
    assert pearson(BoostedTrees(rounds=60, features=["fitness"]), cell, told) > 0.9
    assert pearson(BoostedTrees(rounds=60), plain, told) < 0.8
    order = GeneOrder(cell.genes)
    table = BoostedTrees(feature_dimensions=4)._feature_tables(cell, order)["profile"]
    # Four components and the share of missing values; three directions hold a table of rank 3.
    assert table.shape == (n, 5)
    assert np.isnan(table[order.place[~known]]).all()
    rest = table[order.place[known]]
    assert rest[:, :3].std(axis=0).min() > 1e3 * rest[:, 3].std()


def test_trees_refuse_a_cell_with_other_relations(screen):
    cell, sets, _ = screen
    trees = BoostedTrees(rounds=2).fit(*screen)
    for other in (cell.with_relations(["physical"]), random_cell(density=0.3)):
        assert other.genes.systematic == cell.genes.systematic
        assert refused(trees, other, sets) == "other-cell"
        assert refused(BoostedTrees().load_state_dict, other, trees.state_dict()) == "other-cell"
    assert torch.equal(trees(random_cell(), sets).score, trees(cell, sets).score)


def random_relation(rng, n, name, directed):
    n_edges = int(rng.integers(0, n * n // 2 + 1))
    edges, weights = rng.integers(0, n, (2, n_edges)), rng.uniform(-1, 1, n_edges)
    return Relation.from_edges(name, *edges, weights, n_genes=n, directed=directed)


def dense(relation):
    matrix = np.full((relation.n_genes, relation.n_genes), np.nan)
    source, target, weight = relation.entries()
    matrix[target, source] = weight
    return matrix


def brute_force(features, genes):
    """The columns of one set, from dense matrices and Python loops."""
    of_genes, of_pairs, pairs = [], [], list(combinations(genes, 2))
    for relation, embedding in zip(features.relations, features.embeddings, strict=True):
        weight = dense(relation)
        edge = ~np.isnan(weight)
        of_genes += [[embedding[g, i] for g in genes] for i in range(embedding.shape[1])]
        of_genes += [[edge[g].sum() for g in genes]]
        of_pairs += [[np.nanmax([weight[a, b], weight[b, a], -9]) for a, b in pairs]]
        of_pairs[-1] = [0.0 if w == -9 else w for w in of_pairs[-1]]
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
def test_network_features_equal_brute_force(seed, n):
    rng = np.random.default_rng(seed)
    relations = [random_relation(rng, n, name, name == "b") for name in "ab"]
    features = NetworkFeatures(relations, n, dimensions=3)
    sets = [sorted(s) for s in random_sets(n, 12, seed=seed)]
    ragged = GeneSets(np.concatenate(sets), np.cumsum([0, *map(len, sets)]))
    table = features(ragged)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, [brute_force(features, s) for s in sets], atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_features, "_SETS_PER_BLOCK", 7)
        patch.setattr(network_features, "_ENTRIES_PER_BLOCK", 5)
        np.testing.assert_array_equal(NetworkFeatures(relations, n, dimensions=3)(ragged), table)
    np.testing.assert_array_equal(NetworkFeatures([], n)(ragged)[:, 0], ragged.sizes)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("iterated", [False, True])
def test_spectral_embedding_is_the_best_of_its_rank(directed, iterated, monkeypatch):
    n, d = 40, 4
    source, target = np.random.default_rng(3).integers(0, n, (2, 150))
    relation = Relation.from_edges("a", source, target, n_genes=n, directed=directed)
    if iterated:
        monkeypatch.setattr(network_features, "_SMALL_ENOUGH_FOR_DENSE", 0)
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


def test_spectral_embedding_of_little():
    empty = Relation.from_edges("a", [], [], n_genes=5, directed=True)
    np.testing.assert_array_equal(spectral_embedding(empty, 3), np.zeros((5, 6)))
    edge = Relation.from_edges("a", [1], [3], n_genes=5, directed=False)
    embedding = spectral_embedding(edge, 8)
    assert embedding.shape == (5, 8)
    assert (embedding[[0, 2, 4]] == 0).all()
    assert (embedding[:, 2:] == 0).all()
    assert (embedding[[1, 3], :2] != 0).all()
