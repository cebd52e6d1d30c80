from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.models.baselines import Additive, QueryPairMean
from deltacell.screen.genotypes import Genotypes


def brute_force(sets, targets, weights, wanted, prior, shrinkage):
    scores = []
    for s, y0 in zip(wanted, prior, strict=True):
        total, weight = shrinkage * y0, shrinkage
        for pair in combinations(s, 2):
            for other, y, w in zip(sets, targets, weights, strict=True):
                if set(pair) <= set(other):
                    total += w * y
                    weight += w
        scores.append(total / weight)
    return scores


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_genes=st.integers(4, 12),
    n=st.integers(1, 40),
    shrinkage=st.sampled_from([0.5, 3.0]),
    toward=st.sampled_from(["additive", "mean"]),
)
def test_equals_brute_force(seed, n_genes, n, shrinkage, toward):
    rng = np.random.default_rng(seed)
    cell = Cell([f"G{i:02d}" for i in rng.permutation(n_genes)], [])
    sets, wanted = (
        [rng.choice(n_genes, rng.integers(1, 5), replace=False).tolist() for _ in range(count)]
        for count in (n, 15)
    )
    targets, weights = rng.normal(size=n), rng.uniform(0.1, 2.0, n)
    fitted = QueryPairMean(shrinkage, toward).fit(cell, Genotypes.of(sets), targets, weights)
    if toward == "additive":
        additive = Additive().fit(cell, Genotypes.of(sets), targets, weights)
        prior = additive(cell, Genotypes.of(wanted)).score.numpy()
    else:
        prior = np.full(15, np.average(targets, weights=weights))
    expected = brute_force(sets, targets, weights, wanted, prior, shrinkage)
    np.testing.assert_allclose(fitted(cell, Genotypes.of(wanted)).score, expected, atol=1e-5)


def test_query_pair_of_a_trigenic_screen_dominates(random_cell):
    cell = random_cell()
    queries = {(0, 1): -1.0, (0, 2): 2.0}
    sets = [[*pair, array] for pair in queries for array in range(3, 28)]
    targets = np.repeat(list(queries.values()), 25)
    fitted = QueryPairMean(toward="mean").fit(cell, Genotypes.of(sets), targets)
    score = fitted(cell, Genotypes.of([[28, 0, 1], [29, 2, 0]])).score
    mean = targets.mean()
    expected = [(3 * mean + 25 * y) / 28 for y in queries.values()]
    np.testing.assert_allclose(score, expected, rtol=1e-5)


def test_without_a_known_pair_it_is_the_prior(random_cell):
    cell = random_cell()
    sets = Genotypes.of([[0, 1], [2, 3], [4]])
    fitted = QueryPairMean(toward="mean").fit(cell, sets, [1.0, 2.0, 6.0])
    score = fitted(cell, Genotypes.of([[0], [0, 2], [28, 29]])).score
    assert score.tolist() == pytest.approx([3.0, 3.0, 3.0])
