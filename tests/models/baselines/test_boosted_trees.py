from __future__ import annotations

import lightgbm
import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.cell.feature import Feature
from deltacell.models.baselines import Additive, BoostedTrees
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.boosted_trees import feature_tables
from deltacell.models.baselines.gene_effects import cross_fitted, ridge
from deltacell.models.baselines.gene_sets import GeneOrder
from deltacell.screen.genotypes import Genotypes

N_GENES = 60


@pytest.fixture
def cell(random_cell):
    return random_cell(N_GENES, density=0.05)


@pytest.fixture
def recorded(monkeypatch):
    """The columns that reach the trees."""
    seen = []
    dataset = lightgbm.Dataset

    def recorder(columns, *arguments, **options):
        seen.append(np.array(columns))
        return dataset(columns, *arguments, **options)

    monkeypatch.setattr(lightgbm, "Dataset", recorder)
    return seen


def part_of(cell, sets, targets):
    return Part(GeneOrder(cell.genes).sets(sets), targets, np.ones(len(targets)))


def test_own_score_never_reaches_own_features(cell, random_sets, recorded):
    sets = random_sets(N_GENES, 100)
    targets = np.random.default_rng(1).normal(size=100)
    BoostedTrees(rounds=1).fit(cell, sets, targets)
    changed = targets.copy()
    changed[17] += 100
    BoostedTrees(rounds=1).fit(cell, sets, changed)
    before, after = recorded
    moved = (before != after) & ~(np.isnan(before) & np.isnan(after))
    assert not moved[17].any()
    assert moved.any()


def test_repeats_of_a_genotype_do_not_leak_either(cell):
    sets = Genotypes.of([[0, 1], [1, 0], [2, 3], [1, 2], [0, 3], [1, 0]])
    targets = np.arange(6.0)
    effects = cross_fitted(part_of(cell, sets, targets), N_GENES, 3.0, folds=3, seed=0)
    assert effects.fold[0] == effects.fold[1] == effects.fold[5]
    assert len(effects.effect) == 3


def test_folds_are_ridge_on_the_others(cell, random_sets):
    sets = random_sets(N_GENES, 80)
    part = part_of(cell, sets, np.random.default_rng(1).normal(size=80))
    effects = cross_fitted(part, N_GENES, 3.0, folds=4, seed=0)
    assert np.bincount(effects.fold).tolist() == pytest.approx([20] * 4, abs=8)
    for fold in range(4):
        others = ridge(part.take(np.flatnonzero(effects.fold != fold)), N_GENES, 3.0)
        np.testing.assert_array_equal(effects.effect[fold], others.effect)
        own = effects.of(part.sets)[effects.fold[part.sets.owner] == fold]
        genes = part.sets.genes[effects.fold[part.sets.owner] == fold]
        np.testing.assert_array_equal(own, others.effect[genes])


def test_noise_is_not_learned(cell, random_sets):
    """On noise, leaked effects follow their own scores; cross-fitted ones do not."""
    rng = np.random.default_rng(5)
    sets = random_sets(N_GENES, 1500, sizes=(2,))
    targets = rng.normal(size=1500)
    part = part_of(cell, sets, targets)
    leaked = ridge(part, N_GENES, 3.0).effect[part.sets.genes]
    fair = cross_fitted(part, N_GENES, 3.0, folds=5, seed=0).of(part.sets)

    def followed(effects):
        return np.corrcoef(np.add.reduceat(effects, part.sets.offsets[:-1]), targets)[0, 1]

    assert followed(leaked) > 0.15
    assert followed(fair) < 0.08
    train, held = torch.arange(1000), torch.arange(1000, 1500)
    trees = BoostedTrees(rounds=50).fit(cell, sets.take(train), targets[:1000])
    score = trees(cell, sets.take(held)).score
    assert abs(np.corrcoef(score, targets[1000:])[0, 1]) < 4 / np.sqrt(500)


def test_learns_what_the_network_says(cell):
    """A pair scores where its genes are neighbours, for genes never seen too."""
    relation = cell.relation("physical")
    source, target, _ = relation.edges()
    neighbour = np.zeros((N_GENES, N_GENES), dtype=bool)
    neighbour[source, target] = neighbour[target, source] = True
    pairs = np.array([[i, j] for i in range(N_GENES) for j in range(i)])
    targets = neighbour[pairs[:, 0], pairs[:, 1]].astype(float)
    unseen = (pairs >= 45).any(axis=1)
    sets, held = Genotypes.of(pairs[~unseen]), Genotypes.of(pairs[unseen])
    trees = BoostedTrees(rounds=60).fit(cell, sets, targets[~unseen])
    additive = Additive().fit(cell, sets, targets[~unseen])

    def pearson(model):
        return np.corrcoef(model(cell, held).score, targets[unseen])[0, 1]

    assert pearson(trees) > 0.9
    assert pearson(additive) < 0.3


def test_pairs_alone_need_fewer_columns(cell, random_sets, recorded):
    every_size = random_sets(N_GENES, 50)
    for sizes in ((1,), (2,), (2, 3)):
        sets = random_sets(N_GENES, 50, sizes=sizes)
        trees = BoostedTrees(rounds=1, dimensions=2).fit(cell, sets, np.arange(50.0))
        assert trees(cell, every_size).score.isfinite().all()
    widths = [features.shape[1] for features in recorded]
    genes, pairs = (2 + 1) + (4 + 2) + (2 + 1), 3 + 4 + 3
    assert widths == [3 + genes, 4 + 2 * genes + pairs, 5 + 3 * genes + 3 * pairs]
    pair_columns = recorded[1][:, 1 + 2 * genes : -3]
    assert np.isfinite(pair_columns).all()


def test_seed_decides(cell, random_sets):
    sets = random_sets(N_GENES, 400)
    targets = np.random.default_rng(1).normal(size=400)
    one, again, other = (
        BoostedTrees(rounds=10).fit(cell, sets, targets, seed=seed)(cell, sets).score
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_large_batch_in_blocks(cell, random_sets, monkeypatch):
    sets = random_sets(N_GENES, 300)
    trees = BoostedTrees(rounds=10).fit(cell, sets, np.random.default_rng(1).normal(size=300))
    whole = trees(cell, sets).score
    monkeypatch.setattr("deltacell.models.baselines.boosted_trees._SETS_A_BLOCK", 7)
    assert torch.equal(trees(cell, sets).score, whole)


def test_the_effect_of_an_unseen_gene_is_missing_and_no_zero(cell, monkeypatch):
    sets = Genotypes.of([[i, j] for i in range(20) for j in range(i)])
    trees = BoostedTrees(rounds=2, forget=0).fit(cell, sets, np.arange(190) / 10)
    order = GeneOrder(cell.genes)
    asked = order.sets(Genotypes.of([[0, 1], [0, 40], [40, 41]]))
    seen = []
    monkeypatch.setattr(
        "deltacell.models.baselines.boosted_trees.predicted",
        lambda trees, columns: seen.append(columns) or np.zeros(len(columns)),
    )
    trees._score(cell, asked)
    low, high, known = seen[0][:, -3:].T
    assert known.tolist() == [2, 1, 0]
    assert low[1] == high[1] == np.float32(trees._effects.effect[order.place[0]])
    assert low[0] < high[0]
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_training_sees_genes_without_an_effect(cell, random_sets, recorded):
    sets = random_sets(N_GENES, 2000, sizes=(2,))
    for forget in (0.0, 0.25):
        BoostedTrees(rounds=1, forget=forget).fit(cell, sets, np.arange(2000.0))
    none, quarter = (2 - columns[:, -1] for columns in recorded)
    assert none.sum() == 0
    assert quarter.mean() / 2 == pytest.approx(0.25, abs=0.03)


def test_gene_features_reach_the_trees_with_what_is_missing(random_cell):
    """A score that only a feature tells, of genes never seen; a gene without one is not a zero."""
    rng = np.random.default_rng(0)
    known = np.arange(N_GENES) % 10 != 9
    values = rng.normal(size=(N_GENES, 1)) + 5
    plain = random_cell(N_GENES)
    feature = Feature("fitness", np.where(known[:, None], values, np.nan))
    cell = Cell(plain.genes, plain.relations.values(), features=[feature])
    pairs = np.array([[i, j] for i in range(N_GENES) for j in range(i)])
    targets = values[pairs, 0].sum(axis=1)
    held = (pairs >= 45).any(axis=1)
    with_value = held & known[pairs].all(axis=1)

    def pearson(cell):
        trees = BoostedTrees(rounds=60).fit(cell, Genotypes.of(pairs[~held]), targets[~held])
        score = trees(cell, Genotypes.of(pairs[with_value])).score
        return np.corrcoef(score, targets[with_value])[0, 1]

    assert pearson(cell) > 0.9
    assert pearson(plain) < 0.8


def test_wide_features_are_reduced_and_stay_missing_where_nothing_is_known(random_cell):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(N_GENES, 3)) @ rng.normal(size=(3, 50))
    known = np.arange(N_GENES) != 7
    plain = random_cell(N_GENES)
    profile = Feature("profile", np.where(known[:, None], values, np.nan))
    cell = Cell(plain.genes, [], features=[profile])
    order = GeneOrder(cell.genes)
    table = feature_tables(cell, order, None, 4)["profile"]
    # The last one is the share of values that are missing.
    assert table.shape == (N_GENES, 5)
    assert np.isnan(table[order.place[7]]).all()
    rest = np.delete(table, order.place[7], axis=0)
    assert np.isfinite(rest).all()
    # Three directions hold all of a table of rank three.
    assert rest[:, :3].std(axis=0).min() > 1e3 * rest[:, 3].std()
