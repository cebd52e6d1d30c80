"""Metrics equal those of scipy and scikit-learn, on rows as they are and written out often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from deltacell.evaluate import METRICS
from deltacell.evaluate.metrics import Column, Weights, midranks, ranking

fast = settings(max_examples=60, deadline=None)

REFERENCE = {
    "pearson": lambda x, y, _: stats.pearsonr(x, y).statistic,
    "spearman": lambda x, y, _: stats.spearmanr(x, y).statistic,
    "mse": lambda x, y, _: np.mean((x - y) ** 2),
    "auroc": lambda x, _, positive: roc_auc_score(positive, x),
    "aupr": lambda x, _, positive: average_precision_score(positive, x),
}


def value(name, prediction, truth):
    return METRICS[name].measure(Column(prediction), Column(truth))[0]


@st.composite
def cases(draw):
    """Predictions with ties, truth with ties, classes of both kinds, and counts of the rows."""
    seed = draw(st.integers(0, 10_000))
    n = draw(st.integers(4, 60))
    rng = np.random.default_rng(seed)
    decimals = draw(st.sampled_from([0, 1, 8]))
    truth = np.round(rng.normal(size=n), decimals)
    prediction = np.round(draw(st.sampled_from([-1, 0, 1])) * truth + rng.normal(size=n), decimals)
    positive = (rng.random(n) < 0.4).astype(float)
    counts = rng.integers(0, 4, n).astype(float)
    # Two rows that differ in all, and are always drawn, keep every metric defined.
    truth[:2], prediction[:2], positive[:2], counts[:2] = (5, -5), (4, -4), (1, 0), 1
    return (prediction, truth, positive), counts


@pytest.mark.parametrize("name", METRICS)
@given(case=cases(), seed=st.integers(0, 1000))
@fast
def test_equal_to_the_libraries_with_rows_written_out_in_any_order(name, case, seed):
    columns, counts = case
    metric, often = METRICS[name], counts.astype(int)
    prediction, truth = columns[0], columns[1 if metric.of == "score" else 2]
    expected = REFERENCE[name](*columns)
    order = np.random.default_rng(seed).permutation(len(truth))
    for rows in (slice(None), order):
        assert value(name, prediction[rows], truth[rows]) == pytest.approx(expected, abs=1e-10)
    weights = Weights(np.stack([counts, np.ones_like(counts)]))
    values = metric.function(Column(prediction), Column(truth), weights)
    written = REFERENCE[name](*(np.repeat(column, often) for column in columns))
    np.testing.assert_allclose(values, [written, expected], atol=1e-10)


@given(case=cases(), scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
@fast
def test_standardised_targets_leave_correlations_and_scale_the_mean_square(case, scale, shift):
    (prediction, truth, _), _ = case
    scaled = scale * prediction + shift, scale * truth + shift
    found, before = (
        {name: value(name, *columns) for name in ("pearson", "spearman", "mse")}
        for columns in (scaled, (prediction, truth))
    )
    assert found["pearson"] == pytest.approx(before["pearson"], abs=1e-6)
    assert found["mse"] / scale**2 == pytest.approx(before["mse"], rel=1e-6)
    # Ranks see ties that rounding breaks, so they are compared where there are none to break.
    if len(np.unique(np.r_[prediction, truth])) == 2 * len(truth):
        assert found["spearman"] == pytest.approx(before["spearman"], abs=1e-6)


@given(case=cases())
@fast
def test_midranks_are_scipys(case):
    (prediction, _, _), counts = case
    often = counts.astype(int)
    written = np.repeat(prediction, often)
    column, weights = Column(prediction), Weights(counts[None])
    ranks = midranks(weights, column)[0]
    np.testing.assert_allclose(np.repeat(ranks, often), stats.rankdata(written))
    below = [(written < value).sum() for value in np.unique(prediction)]
    np.testing.assert_allclose(ranking(weights, column)[1][0], below)
