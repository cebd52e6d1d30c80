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
