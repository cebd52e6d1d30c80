"""Bootstrap intervals: their coverage, their pairing, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.evaluate import METRICS, Bootstrap
from deltacell.evaluate.metrics import Column, Weights


def drawn(bootstrap, name, prediction, truth, keys):
    return np.concatenate(
        [
            METRICS[name].function(Column(prediction), Column(truth), Weights(block))
            for block in bootstrap.weights(keys)
        ]
    )


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    # Of 300 intervals at 80 %, binomial noise leaves 75 to 85 % within two deviations.
    truth, covered = 0.5, {0.8: 0, 0.4: 0}
    for trial in range(300):
        rng = np.random.default_rng(trial)
        x = rng.normal(size=150)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=150)
        values = drawn(Bootstrap(300, seed=trial), "pearson", x, y, np.arange(150))
        for level in covered:
            low, high = Bootstrap(level=level).interval(values)
            covered[level] += low <= truth <= high
    assert 0.73 <= covered[0.8] / 300 <= 0.86
    assert 0.32 <= covered[0.4] / 300 <= 0.48


def with_gene_effects(rng, n_genes=60, n=500):
    """Predictions and scores of pairs whose parts of each gene correlate, and the true Pearson."""
    first, second = np.triu_indices(n_genes, 1)
    chosen = rng.permutation(len(first))[:n]
    pairs = np.stack([first[chosen], second[chosen]], axis=1)
    u, v = rng.normal(size=(2, n_genes))
    v = 0.5 * u + np.sqrt(0.75) * v
    x, y = (of[pairs].sum(axis=1) + 0.5 * rng.normal(size=n) for of in (u, v))
    return x, y, pairs, 0.5 * 2 / (2 + 0.25)


def test_with_gene_effects_resampled_genes_cover_the_truth_and_resampled_pairs_do_not():
    # Of 200 intervals at 95 %, binomial noise leaves 92 to 98 % within two deviations.
    covered = {"genes": 0, "pairs": 0}
    for trial in range(200):
        x, y, pairs, truth = with_gene_effects(np.random.default_rng(trial))
        bootstrap = Bootstrap(300, seed=trial)
        for name, units in (("genes", pairs), ("pairs", np.arange(len(x)))):
            low, high = bootstrap.interval(drawn(bootstrap, "pearson", x, y, units))
            covered[name] += low <= truth <= high
    assert covered["genes"] / 200 >= 0.91
    assert covered["pairs"] / 200 <= 0.65


def test_without_gene_effects_resampled_genes_are_conservative_by_what_is_documented():
    ratios = []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        _, _, pairs, _ = with_gene_effects(rng, n_genes=200, n=3000)
        x, y = rng.normal(size=(2, len(pairs)))
        widths = []
        for units in (pairs, np.arange(len(x))):
            bootstrap = Bootstrap(200, seed=trial)
            low, high = bootstrap.interval(drawn(bootstrap, "pearson", x, y, units))
            widths.append(high - low)
        ratios.append(widths[0] / widths[1])
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
    (times,) = bootstrap.weights(genes)
    np.testing.assert_array_equal(times.sum(axis=1), len(genes))
    (weights,) = bootstrap.weights(padded)
    column = {int(gene): i for i, gene in enumerate(genes)}
    for row, genes_of_row in enumerate(sets):
        product = np.prod([times[:, column[g]] for g in genes_of_row], axis=0)
        np.testing.assert_array_equal(weights[:, row], product)


def test_sets_of_several_rows_are_drawn_whole_and_widen_the_interval():
    # Each set is measured ten times with the same noise: there are 40 rows of news, not 400.
    rng = np.random.default_rng(0)
    keys = np.repeat(np.arange(40), 10)
    x, noise = rng.normal(size=(2, 40))
    y = x + 2 * noise
    bootstrap = Bootstrap(1000)
    widths = []
    for of_row in (keys, np.arange(400)):
        low, high = bootstrap.interval(drawn(bootstrap, "pearson", x[keys], y[keys], of_row))
        widths.append(high - low)
    assert widths[0] > 2.5 * widths[1]
    (weights,) = bootstrap.weights(keys)
    assert (weights.reshape(-1, 40, 10) == weights.reshape(-1, 40, 10)[:, :, :1]).all()


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=20), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_as_many_sets_are_drawn_as_there_are(sizes, seed):
    keys = np.repeat(np.arange(len(sizes)) * 7, sizes)
    first = np.unique(keys, return_index=True)[1]
    weights = np.concatenate(list(Bootstrap(30, seed=seed).weights(keys)))
    assert weights.shape == (30, len(keys))
    np.testing.assert_array_equal(weights[:, first].sum(axis=1), len(sizes))


@given(seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_resamples_do_not_depend_on_the_order_of_rows(seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 12, 30)
    order = rng.permutation(30)
    bootstrap = Bootstrap(20, seed=seed)
    (weights,) = bootstrap.weights(keys)
    (shuffled,) = bootstrap.weights(keys[order])
    np.testing.assert_array_equal(weights[:, order], shuffled)


def test_blocks_change_nothing(monkeypatch):
    keys = np.arange(50)
    (whole,) = Bootstrap(40).weights(keys)
    monkeypatch.setattr("deltacell.evaluate.bootstrap._NUMBERS_A_BLOCK", 350)
    blocks = list(Bootstrap(40).weights(keys))
    assert len(blocks) == 6
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


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
            low, high = bootstrap.interval(drawn(bootstrap, name, prediction, column, truth))
            missed[name] += not low <= chance <= high
    assert all(missed[name] <= 9 for name in missed), missed


@pytest.mark.parametrize("share", [0.5, 0.96])
def test_an_interval_needs_resamples_that_define_it(share):
    values = np.linspace(0, 1, 100)
    values[int(100 * share) :] = np.nan
    assert (Bootstrap().interval(values) is None) == (share < 0.95)
