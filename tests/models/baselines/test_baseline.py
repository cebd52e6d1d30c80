from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.errors import InputError
from deltacell.models import Prediction
from deltacell.models.baselines import BASELINES, Additive, BoostedTrees, GlobalMean, baseline
from deltacell.screen.genotypes import Genotypes

FAST = {"embedding_mlp": {"epochs": 2, "width": 8}, "boosted_trees": {"rounds": 5}}


@pytest.fixture(params=list(BASELINES))
def any_baseline(request):
    return baseline(request.param, **FAST.get(request.param, {}))


@pytest.fixture
def screen(random_cell, random_sets):
    cell = random_cell()
    sets = random_sets(cell.n_genes, 200)
    return cell, sets, np.random.default_rng(1).normal(size=200)


def test_registry_makes_each_by_name():
    assert type(baseline("additive", penalty=1.0)) is Additive
    assert {type(baseline(name)) for name in BASELINES} == set(BASELINES.values())


def test_unknown_name_lists_those_there_are():
    with pytest.raises(InputError, match=r"no baseline 'aditive'.*global_mean, additive, query"):
        baseline("aditive")


def test_prediction_of_mixed_sizes(any_baseline, screen):
    cell, sets, targets = screen
    assert any_baseline.fit(cell, sets, targets) is any_baseline
    prediction = any_baseline(cell, sets)
    assert isinstance(prediction, Prediction)
    assert prediction.score.dtype == torch.float32
    assert prediction.score.shape == (200,)
    assert prediction.score.isfinite().all()


def test_sizes_never_seen_in_training(any_baseline, screen):
    cell, _, _ = screen
    pairs = Genotypes.of([[i, (i + 1) % cell.n_genes] for i in range(cell.n_genes)])
    any_baseline.fit(cell, pairs, np.arange(cell.n_genes) / 10)
    score = any_baseline(cell, Genotypes.of([[0], [1, 2], list(range(7))])).score
    assert score.shape == (3,)
    assert score.isfinite().all()


def test_empty_batch(any_baseline, screen):
    any_baseline.fit(*screen)
    assert any_baseline(screen[0], Genotypes.of([])).score.shape == (0,)


def test_one_training_genotype(any_baseline, screen):
    cell = screen[0]
    any_baseline.fit(cell, Genotypes.of([[3, 4]]), [2.0])
    # One gene of MLP noise aside, all that is known is the mean.
    assert any_baseline(cell, Genotypes.of([[7]])).score.item() == pytest.approx(2.0, abs=1.0)


def test_targets_as_tensor_list_or_array(any_baseline, screen):
    cell, sets, targets = screen
    expected = any_baseline.fit(cell, sets, targets)(cell, sets).score
    for given in (torch.from_numpy(targets), targets.tolist()):
        assert torch.equal(any_baseline.fit(cell, sets, given)(cell, sets).score, expected)


@pytest.mark.parametrize("name", list(BASELINES))
def test_weights_count(name, screen):
    cell = screen[0]
    patient = {"epochs": 60, "patience": 60, "width": 8, "learning_rate": 1e-2}
    any_baseline = baseline(name, **(patient if name == "embedding_mlp" else {}))
    low = Genotypes.of([[0, 1]] * 40)
    weights = np.repeat([0.0, 1.0], 20)
    values = np.repeat([5.0, -1.0], 20)
    score = any_baseline.fit(cell, low, values, weights)(cell, Genotypes.of([[0, 1]])).score
    assert score.item() == pytest.approx(-1.0, abs=0.2)


def test_call_before_fit(any_baseline, screen):
    with pytest.raises(InputError, match=r"not learned anything.*\n.*fit\(cell"):
        any_baseline(screen[0], screen[1])


def test_failed_fit_leaves_it_unfitted(screen):
    cell, sets, targets = screen
    mean = GlobalMean().fit(cell, sets, targets)
    with pytest.raises(InputError):
        mean.fit(cell, sets, targets[:3])
    with pytest.raises(InputError, match="not learned"):
        mean(cell, sets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, t, w: (s, t[:-1], w), r"training targets of shape \(199,\) for 200 genotypes"),
        (lambda s, t, w: (s, t[:, None], w), r"shape \(200, 1\)"),
        (lambda s, t, w: (s, np.r_[t[:-1], np.nan], w), r"1 of 200 training targets.*genotype 199"),
        (lambda s, t, w: (s, t, -w), "must not be negative"),
        (lambda s, t, w: (s, t, 0 * w), "not all 0"),
        (lambda s, t, w: (s, t, w[:-1]), r"training weights of shape \(199,\)"),
        (lambda s, t, w: (Genotypes.of([]), [], []), "training part has no genotype"),
        (lambda s, t, w: (Genotypes.of([[0, 30]]), [1.0], [1.0]), "deletes gene 30.*0 to 29"),
        (lambda s, t, w: (Genotypes.of([[0, 0]]), [1.0], [1.0]), "gene 0 twice"),
        (lambda s, t, w: (Genotypes.of([[0], []]), [1.0, 1.0], None), "genotype 1 deletes no gene"),
    ],
)
def test_bad_training_part(screen, change, message):
    cell, sets, targets = screen
    with pytest.raises(InputError, match=message):
        Additive().fit(cell, *change(sets, targets, np.ones(200)))


def test_bad_validation_part(screen):
    with pytest.raises(InputError, match="validation targets of shape"):
        Additive().fit(*screen, validation=(screen[1], [1.0]))


def test_genotype_outside_the_cell(any_baseline, screen):
    any_baseline.fit(*screen)
    with pytest.raises(InputError, match="deletes gene 30"):
        any_baseline(screen[0], Genotypes.of([[30]]))


def test_cell_with_other_genes(any_baseline, screen):
    cell = screen[0]
    any_baseline.fit(*screen)
    fewer = cell.subset(range(29))
    with pytest.raises(InputError, match=rf"30 genes, and given one of 29.*'{cell.genes[29]}'"):
        any_baseline(fewer, Genotypes.of([[0]]))


def test_cell_with_other_relations(screen, random_cell):
    cell, sets, _ = screen
    trees = BoostedTrees(rounds=2).fit(*screen)
    with pytest.raises(InputError, match=r"relations physical, regulatory, empty, and given.*phys"):
        trees(cell.with_relations(["physical"]), sets)
    other = random_cell(density=0.3)
    assert other.genes.systematic == cell.genes.systematic
    with pytest.raises(InputError, match="relation 'physical' of this cell is not the one"):
        trees(other, sets)
    same = random_cell()
    assert torch.equal(trees(same, sets).score, trees(cell, sets).score)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("additive", {"penalty": 0}, "penalty is 0"),
        ("additive", {"penalty": float("nan")}, "penalty is nan"),
        ("query_pair_mean", {"shrinkage": -1}, "shrinkage is -1"),
        ("query_pair_mean", {"toward": "median"}, "toward 'median'; toward additive or mean"),
        ("query_pair_mean", {"penalty": -1}, "penalty is -1"),
        ("embedding_mlp", {"width": 0}, "width is 0"),
        ("embedding_mlp", {"forget": 1.0}, "forget is 1.0"),
        ("embedding_mlp", {"learning_rate": 0}, "learning rate is 0"),
        ("boosted_trees", {"rounds": 0}, "rounds is 0"),
        ("boosted_trees", {"folds": 1}, "folds is 1; expected at least 2"),
        ("boosted_trees", {"learning_rate": 2}, "learning rate is 2"),
    ],
)
def test_bad_parameters(name, parameters, message):
    with pytest.raises(InputError, match=message):
        baseline(name, **parameters)


def test_global_mean_is_the_weighted_mean(screen):
    cell, sets, targets = screen
    weights = np.random.default_rng(2).random(200)
    score = GlobalMean().fit(cell, sets, targets, weights)(cell, sets).score
    np.testing.assert_allclose(score, (weights * targets).sum() / weights.sum(), rtol=1e-6)


def test_progress_is_reported(any_baseline, screen):
    seen = []
    any_baseline.fit(*screen, progress=lambda what, done, total: seen.append((what, done, total)))
    assert all(0 <= done <= total for _, done, total in seen)
    if type(any_baseline).__name__ in ("EmbeddingMLP", "BoostedTrees"):
        assert seen[-1][1] == seen[-1][2]
