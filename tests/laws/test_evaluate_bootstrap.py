"""Bootstrap intervals: their coverage, their pairing, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.evaluate import METRICS, Bootstrap
from deltacell.evaluate.metrics import Column, Weights


def drawn(bootstrap, name, prediction, truth, keys):
    columns = Column(prediction), Column(truth)
    blocks = bootstrap.weights(keys.reshape(len(keys), -1))
    return np.concatenate([METRICS[name].function(*columns, Weights(block)) for block in blocks])


def interval(bootstrap, *arguments):
    return np.array(bootstrap.interval(drawn(bootstrap, *arguments)))


def with_gene_effects(rng, n_genes=60, n=500):
    """Predictions and scores of pairs whose parts of each gene correlate, and the true Pearson."""
    pairs = rng.permutation(np.stack(np.triu_indices(n_genes, 1), axis=1))[:n]
    u, v = rng.normal(size=(2, n_genes))
    v = 0.5 * u + np.sqrt(0.75) * v
    x, y = (of[pairs].sum(axis=1) + 0.5 * rng.normal(size=n) for of in (u, v))
    return x, y, pairs, 0.5 * 2 / (2 + 0.25)


def test_with_gene_effects_resampled_genes_cover_the_truth_and_resampled_pairs_do_not():
    # Of 200 intervals at 95 %, binomial noise leaves 92 to 98 % within two deviations.
    covered = {"genes": 0, "pairs": 0}
    for trial in range(200):
        x, y, pairs, truth = with_gene_effects(np.random.default_rng(trial))
        for name, units in (("genes", pairs), ("pairs", np.arange(len(x)))):
            low, high = interval(Bootstrap(300, seed=trial), "pearson", x, y, units)
            covered[name] += low <= truth <= high
    assert covered["genes"] / 200 >= 0.91
    assert covered["pairs"] / 200 <= 0.65


def test_without_gene_effects_resampled_genes_are_conservative_by_what_is_documented():
    ratios = []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        _, _, pairs, _ = with_gene_effects(rng, n_genes=200, n=3000)
        x, y = rng.normal(size=(2, len(pairs)))
        genes, rows = (
            np.ptp(interval(Bootstrap(200, seed=trial), "pearson", x, y, units))
            for units in (pairs, np.arange(len(x)))
        )
        ratios.append(genes / rows)
    assert 1.2 < np.mean(ratios) < np.sqrt(3) + 0.1


@given(
    sets=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), min_size=1, max_size=15
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_a_set_counts_as_the_product_of_its_genes(sets, seed):
    padded = np.array([[-1] * (3 - len(s)) + sorted(s) for s in sets])
    genes = np.unique(padded[padded >= 0])
    bootstrap = Bootstrap(25, seed=seed)
    # The same genes as sets of one gene show how often each was drawn.
    (times,) = bootstrap.weights(genes[:, None])
    np.testing.assert_array_equal(times.sum(axis=1), len(genes))
    (weights,) = bootstrap.weights(padded)
    column = {int(gene): i for i, gene in enumerate(genes)}
    for row, genes_of_row in enumerate(sets):
        product = np.prod([times[:, column[g]] for g in genes_of_row], axis=0)
        np.testing.assert_array_equal(weights[:, row], product)


@given(seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_resamples_depend_neither_on_the_order_of_rows_nor_on_blocks(seed):
    rng = np.random.default_rng(seed)
    keys, order, bootstrap = rng.integers(0, 12, 30), rng.permutation(30), Bootstrap(20, seed=seed)
    (weights,) = bootstrap.weights(keys[:, None])
    (shuffled,) = bootstrap.weights(keys[order, None])
    np.testing.assert_array_equal(weights[:, order], shuffled)
    # As many different keys are drawn as there are.
    different, first = np.unique(keys, return_index=True)
    np.testing.assert_array_equal(weights[:, first].sum(axis=1), len(different))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltacell.evaluate.metrics._NUMBERS_A_BLOCK", 100)
        blocks = list(bootstrap.weights(keys[:, None]))
    assert len(blocks) == 7
    np.testing.assert_array_equal(np.concatenate(blocks), weights)


def test_shuffled_labels_leave_intervals_that_hold_chance():
    missed = dict.fromkeys(METRICS, 0)
    for trial in range(60):
        rng = np.random.default_rng(trial)
        truth = rng.normal(size=200)
        prediction = rng.permutation(truth)
        positive = (truth < -0.5).astype(float)
        bootstrap = Bootstrap(300, seed=trial)
        for name, chance in (("pearson", 0.0), ("spearman", 0.0), ("auroc", 0.5)):
            column = positive if name == "auroc" else truth
            low, high = interval(bootstrap, name, prediction, column, truth)
            missed[name] += not low <= chance <= high
    assert all(missed[name] <= 9 for name in missed), missed


@pytest.mark.parametrize("share", [0.5, 0.96])
def test_an_interval_needs_resamples_that_define_it(share):
    values = np.linspace(0, 1, 100)
    values[int(100 * share) :] = np.nan
    assert (Bootstrap().interval(values) is None) == (share < 0.95)
