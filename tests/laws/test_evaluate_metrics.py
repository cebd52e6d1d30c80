"""Metrics equal those of scipy and scikit-learn, on rows as they are and written out often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from deltacell.evaluate import METRICS
from deltacell.evaluate.metrics import Column, Weights

fast = settings(max_examples=60, deadline=None)


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
    return prediction, truth, positive, counts


def reference(name, prediction, truth, positive):
    return {
        "pearson": lambda: stats.pearsonr(prediction, truth).statistic,
        "spearman": lambda: stats.spearmanr(prediction, truth).statistic,
        "mse": lambda: np.mean((prediction - truth) ** 2),
        "auroc": lambda: roc_auc_score(positive, prediction),
        "aupr": lambda: average_precision_score(positive, prediction),
    }[name]()


def truth_of(name, truth, positive):
    return truth if METRICS[name].of == "score" else positive


@pytest.mark.parametrize("name", METRICS)
@given(case=cases())
@fast
def test_equal_to_the_libraries(name, case):
    prediction, truth, positive, _ = case
    value = METRICS[name](prediction, truth_of(name, truth, positive))
    assert value == pytest.approx(reference(name, prediction, truth, positive), abs=1e-10)


@pytest.mark.parametrize("name", METRICS)
@given(case=cases())
@fast
def test_weights_write_rows_out(name, case):
    prediction, truth, positive, counts = case
    weights = Weights(np.stack([counts, np.ones_like(counts)]))
    column = Column(truth_of(name, truth, positive))
    values = METRICS[name].function(Column(prediction), column, weights)
    often = counts.astype(int)
    expected = [
        reference(name, *(np.repeat(column, often) for column in (prediction, truth, positive))),
        reference(name, prediction, truth, positive),
    ]
    np.testing.assert_allclose(values, expected, atol=1e-10)


@pytest.mark.parametrize("name", METRICS)
@given(case=cases(), seed=st.integers(0, 1000))
@fast
def test_the_order_of_rows_does_not_matter(name, case, seed):
    prediction, truth, positive, _ = case
    column = truth_of(name, truth, positive)
    order = np.random.default_rng(seed).permutation(len(truth))
    shuffled = METRICS[name](prediction[order], column[order])
    assert shuffled == pytest.approx(METRICS[name](prediction, column), abs=1e-12)


@given(case=cases(), scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
@fast
def test_standardised_targets_leave_correlations_and_scale_the_mean_square(case, scale, shift):
    prediction, truth, _, _ = case
    scaled = scale * prediction + shift, scale * truth + shift
    for name in ("pearson", "spearman"):
        # Ranks see ties that rounding breaks, so they are compared where there are none to break.
        if name == "pearson" or len(np.unique(np.r_[prediction, truth])) == 2 * len(truth):
            assert METRICS[name](*scaled) == pytest.approx(
                METRICS[name](prediction, truth), abs=1e-6
            )
    assert METRICS["mse"](*scaled) / scale**2 == pytest.approx(
        METRICS["mse"](prediction, truth), rel=1e-6
    )


@given(case=cases())
@fast
def test_midranks_are_scipys(case):
    prediction, _, _, counts = case
    often = counts.astype(int)
    written = np.repeat(prediction, often)
    column = Column(prediction)
    ranking = Weights(counts[None]).ranking(column)
    ranks = ranking.rank[0][column.group]
    np.testing.assert_allclose(np.repeat(ranks, often), stats.rankdata(written))
    np.testing.assert_allclose(ranking.weighted[0], ranks * counts)
    below = [(written < value).sum() for value in np.unique(prediction)]
    np.testing.assert_allclose(ranking.below[0], below)


def test_rankings_that_are_forgotten_come_back_the_same():
    rng = np.random.default_rng(0)
    weights = Weights(rng.integers(0, 3, (4, 30)).astype(float))
    columns = [Column(rng.integers(0, 9, 30)) for _ in range(8)]
    first = [weights.ranking(column).rank for column in columns]
    for column, rank in zip(columns, first, strict=True):
        np.testing.assert_array_equal(weights.ranking(column).rank, rank)
    assert weights.ranking(columns[-1]) is weights.ranking(columns[-1])
