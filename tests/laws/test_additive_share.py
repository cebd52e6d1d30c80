"""The share that is not additive: 0 for sums of gene effects, 1 for noise, and between the two."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.evaluate.diagnostics import _rank, not_additive

N_GENES = 60


def sets_of(rng, n, sizes=(2,)):
    rows = set()
    while len(rows) < n:
        chosen = rng.choice(N_GENES, rng.choice(sizes), replace=False)
        rows.add((*[-1] * (max(sizes) - len(chosen)), *sorted(chosen.tolist())))
    return np.array(sorted(rows))


def sums(genes, effects):
    return np.where(genes >= 0, effects[genes], 0).sum(axis=1)


@given(seed=st.integers(0, 9999), sizes=st.sampled_from([(2,), (3,), (1, 2, 3)]))
@settings(max_examples=30, deadline=None)
def test_a_sum_of_gene_effects_reads_0(seed, sizes):
    rng = np.random.default_rng(seed)
    genes = sets_of(rng, 300, sizes)
    share, reason = not_additive(genes, 5 + sums(genes, rng.normal(size=N_GENES)))
    assert reason is None
    assert share == pytest.approx(0, abs=1e-8)
    # In the float32 that models compute in, too.
    single = (5 + sums(genes, rng.normal(size=N_GENES))).astype(np.float32)
    assert not_additive(genes, single)[0] < 1e-8


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 3)])
@pytest.mark.parametrize("n", [120, 400])
def test_noise_reads_1_on_average_however_many_genes_there_are(sizes, n):
    shares = []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        shares.append(not_additive(sets_of(rng, n, sizes), rng.normal(size=n))[0])
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 1) < 4 * error
    # Without its correction it would read this much, and a test of it would notice.
    assert 1 - N_GENES / n < 1 - 8 * error


def test_a_mixture_reads_its_share():
    shares = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        genes = sets_of(rng, 500)
        values = sums(genes, rng.normal(size=N_GENES)) + np.sqrt(2) * rng.normal(size=500)
        shares.append(not_additive(genes, values)[0])
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)


@given(seed=st.integers(0, 9999))
@settings(max_examples=20, deadline=None)
def test_scale_order_and_repeats_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    genes = sets_of(rng, 200)
    values = sums(genes, rng.normal(size=N_GENES)) + rng.normal(size=200)
    share = not_additive(genes, values)[0]
    order = rng.permutation(200)
    again = np.concatenate([order, order[:50]])
    turned = genes[again][:, ::-1]
    assert not_additive(turned, 3 - 7 * values[again])[0] == pytest.approx(share, rel=1e-6)


@given(seed=st.integers(0, 9999), n=st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_the_rank_for_pairs_is_that_of_the_dense_indicators(seed, n):
    genes = sets_of(np.random.default_rng(seed), n)
    present, column = np.unique(genes, return_inverse=True)
    column = column.reshape(genes.shape)
    dense = np.zeros((n, len(present)))
    dense[np.arange(n)[:, None], column] = 1
    assert _rank(column.ravel(), np.full(n, 2), len(present)) == np.linalg.matrix_rank(dense)


def test_too_few_sets_and_constants_are_said_to_be():
    rng = np.random.default_rng(0)
    few = sets_of(rng, 30)
    share, reason = not_additive(few, rng.normal(size=30))
    assert share is None
    assert "too few" in reason
    assert not_additive(sets_of(rng, 200), np.full(200, 0.3))[0] is None
