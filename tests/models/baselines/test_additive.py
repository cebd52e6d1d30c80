from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.baselines import Additive
from deltacell.screen.genotypes import Genotypes


def dense_ridge(indicators, targets, weights, penalty):
    """Augmented least squares with an unpenalised intercept in front."""
    n_genes = indicators.shape[1]
    root = np.sqrt(weights)[:, None]
    design = np.hstack([np.ones((len(indicators), 1)), indicators]) * root
    ridge = np.hstack([np.zeros((n_genes, 1)), np.sqrt(penalty) * np.eye(n_genes)])
    solution = np.linalg.lstsq(
        np.vstack([design, ridge]), np.r_[targets * root[:, 0], np.zeros(n_genes)], rcond=None
    )[0]
    return solution[0], solution[1:]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_genes=st.integers(1, 25),
    n=st.integers(1, 120),
    penalty=st.sampled_from([0.01, 3.0, 100.0]),
    weighted=st.booleans(),
)
def test_equals_dense_ridge(seed, n_genes, n, penalty, weighted):
    rng = np.random.default_rng(seed)
    cell = Cell([f"G{i:02d}" for i in rng.permutation(n_genes)], [])
    sets = [
        rng.choice(n_genes, rng.integers(1, min(4, n_genes) + 1), replace=False).tolist()
        for _ in range(n)
    ]
    indicators = np.zeros((n, n_genes))
    for row, genes in enumerate(sets):
        indicators[row, genes] = 1
    targets = rng.normal(2.0, 1.0, n)
    weights = rng.uniform(0.1, 3.0, n) if weighted else np.ones(n)
    additive = Additive(penalty).fit(
        cell, Genotypes.of(sets), targets, weights if weighted else None
    )
    intercept, effects = dense_ridge(indicators, targets, weights, penalty)
    assert additive.intercept == pytest.approx(intercept, abs=1e-6)
    np.testing.assert_allclose(additive.effects(cell), effects, atol=1e-6)
    score = additive(cell, Genotypes.of(sets)).score.numpy()
    np.testing.assert_allclose(score, intercept + indicators @ effects, atol=1e-5)


def test_unseen_gene_adds_nothing(random_cell):
    cell = random_cell()
    sets = Genotypes.of([[i, j] for i in range(20) for j in range(i)])
    additive = Additive().fit(cell, sets, np.random.default_rng(0).normal(size=190))
    assert (additive.effects(cell)[20:] == 0).all()
    score = additive(cell, Genotypes.of([[4], [4, 25], [26, 4, 25], [25, 29]])).score
    assert score[0] == score[1] == score[2]
    assert score[3].item() == pytest.approx(additive.intercept, abs=1e-6)


def test_recovers_planted_effects(random_cell):
    cell = random_cell()
    rng = np.random.default_rng(0)
    effects = rng.normal(size=30)
    sets = [rng.choice(30, rng.integers(1, 4), replace=False).tolist() for _ in range(400)]
    targets = np.array([0.7 + effects[s].sum() for s in sets])
    additive = Additive(1e-6).fit(cell, Genotypes.of(sets), targets)
    np.testing.assert_allclose(additive.effects(cell), effects, atol=1e-4)
    assert additive.intercept == pytest.approx(0.7, abs=1e-4)


def test_effects_before_fit(random_cell):
    with pytest.raises(InputError, match="not learned"):
        Additive().effects(random_cell())
