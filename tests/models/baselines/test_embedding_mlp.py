from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.models.baselines import EmbeddingMLP, GlobalMean
from deltacell.screen.genotypes import Genotypes


@pytest.fixture(scope="module")
def planted():
    """Genes of two classes; a genotype scores high where its first two differ in class."""
    rng = np.random.default_rng(0)
    cell = Cell([f"G{i:02d}" for i in range(40)], [])
    kind = rng.permutation(np.repeat([0, 1], 20))
    pairs = np.array([[i, j] for i in range(40) for j in range(i)])
    pairs = pairs[rng.permutation(len(pairs))]
    targets = 3.0 * (kind[pairs[:, 0]] != kind[pairs[:, 1]]) + 0.1 * rng.normal(size=len(pairs))
    return cell, pairs, targets


def quick(**parameters):
    chosen = {"width": 16, "batch_size": 32, "learning_rate": 1e-2, "epochs": 60, "patience": 60}
    return EmbeddingMLP(**(chosen | parameters))


def test_learns_what_no_sum_of_effects_can(planted):
    cell, pairs, targets = planted
    fitted = quick().fit(cell, Genotypes.of(pairs[:600]), targets[:600])
    score = fitted(cell, Genotypes.of(pairs[600:])).score
    assert np.corrcoef(score, targets[600:])[0, 1] > 0.9


def test_seed_decides(planted):
    cell, pairs, targets = planted
    sets = Genotypes.of(pairs)
    one, again, other = (
        quick(epochs=2).fit(cell, sets, targets, seed=seed)(cell, sets).score for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_leaves_the_global_generator_alone(planted):
    cell, pairs, targets = planted
    before = torch.random.get_rng_state()
    quick(epochs=1).fit(cell, Genotypes.of(pairs), targets)
    assert torch.equal(before, torch.random.get_rng_state())


def test_stops_by_the_validation_part(planted):
    cell, pairs, targets = planted
    sets, held = Genotypes.of(pairs[:600]), Genotypes.of(pairs[600:])
    opposite = targets.mean() * 2 - targets[600:]

    def error_and_epochs(validation, **parameters):
        epochs = []
        fitted = quick(**parameters).fit(
            cell,
            sets,
            targets[:600],
            validation=(held, validation),
            progress=lambda what, done, total: epochs.append(done),
        )
        return np.mean((fitted(cell, held).score.numpy() - opposite) ** 2), len(epochs)

    learned, all_epochs = error_and_epochs(targets[600:])
    assert all_epochs == 60
    # Against scores opposite to those of training, learning more only makes it worse.
    kept, all_epochs = error_and_epochs(opposite)
    assert all_epochs == 60
    assert kept < learned / 2
    assert kept <= error_and_epochs(opposite, epochs=1)[0]
    stopped, few_epochs = error_and_epochs(opposite, patience=3)
    assert few_epochs < 60
    assert stopped < learned / 2


def test_unseen_genes_share_a_vector(planted):
    cell, pairs, targets = planted
    known = (pairs < 35).all(axis=1)
    fitted = quick(forget=0.3).fit(cell, Genotypes.of(pairs[known]), targets[known])
    score = fitted(cell, Genotypes.of([[0, 35], [0, 36], [1, 39], [37], [38]])).score
    assert score[0] == score[1]
    assert score[3] == score[4]
    # One gene of a pair says nothing of whether two differ.
    mean = GlobalMean().fit(cell, Genotypes.of(pairs[known]), targets[known])
    pair_mean = mean(cell, Genotypes.of([[0]])).score.item()
    assert score[0].item() == pytest.approx(pair_mean, abs=0.5)


def test_constant_targets(planted):
    cell, pairs, _ = planted
    sets = Genotypes.of(pairs)
    score = quick(epochs=5).fit(cell, sets, np.full(len(pairs), 4.0))(cell, sets).score
    np.testing.assert_allclose(score, 4.0, atol=0.5)
