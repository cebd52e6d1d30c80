"""90 % intervals hold 90 % of what is measured, whatever the predictor and the errors are."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.screen import Genotypes
from deltacell.train.intervals import (
    FEWEST_ROWS,
    FEWEST_TO_LEARN,
    LEVEL,
    GeneDistances,
    Intervals,
    Quantiles,
)

N = 60
seeds = st.integers(0, 2**31)
ERRORS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.exponential(size=n) ** 2,
    "heavy": lambda rng, n: rng.standard_cauchy(size=n),
    "few": lambda rng, n: rng.choice([-1.0, 0.0, 2.0], n),
}


def world(seed, kind, n, *, with_unseen=False):
    """Return genes, genotypes, predictions and scores; a row's error depends on its genes."""
    rng = np.random.default_rng(seed)
    n_unseen = 20 if with_unseen else 0
    is_seen = np.arange(N) >= n_unseen
    facts = GeneDistances(is_seen, rng.exponential(size=N) + 0.1)
    pairs = np.array([rng.choice(N, 2, replace=False) for _ in range(n)])
    predicted = rng.normal(size=n)
    scale = facts.distance[pairs].max(axis=1) * (1 + (~is_seen[pairs]).sum(axis=1))
    measured = predicted + scale * ERRORS[kind](rng, n)
    return facts, pairs, predicted, measured


def genotypes(pairs):
    offsets = torch.arange(len(pairs) + 1) * 2
    return Genotypes(torch.from_numpy(pairs.ravel().astype(np.int64)), offsets)


def calibrated(facts, pairs, predicted, measured, seed=0):
    sets = genotypes(pairs)
    return Intervals.calibrated(facts, sets, predicted, measured, center=0.0, seed=seed)


def held(intervals, facts, pairs, predicted, measured):
    ends = intervals.around(facts, genotypes(pairs), predicted)
    return (ends.low <= measured) & (measured <= ends.high)


def test_no_row_both_learns_the_expected_distance_and_calibrates(monkeypatch):
    """The validity of the intervals rests on it; the few weights would hardly show a breach."""
    learned, used = [], []

    def constant_distance(columns, distances):
        learned.extend(distances.tolist())
        return np.array([100.0, 0.0, 0.0, 0.0]), 0.0

    def observed_quantiles(distances):
        used.append(np.abs(distances * 100.0))
        return Quantiles(-1.0, 1.0)

    monkeypatch.setattr("deltacell.train.intervals.nnls", constant_distance)
    monkeypatch.setattr(Quantiles, "of", observed_quantiles)
    calibrated(*world(3, "normal", FEWEST_TO_LEARN))
    *of_groups, _ = used  # the last one is of the scores themselves
    calibrating = np.concatenate(of_groups)
    assert len(learned) + len(calibrating) == FEWEST_TO_LEARN
    gaps = np.abs(np.subtract.outer(np.array(learned), calibrating))
    assert gaps.min() > 1e-9


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("n_calibration", [FEWEST_ROWS + 1, FEWEST_TO_LEARN + 200])
def test_a_further_exchangeable_row_is_held_nine_times_in_ten(kind, n_calibration):
    """On average over calibrations; ties and whole numbers only make intervals wider."""
    shares = []
    for seed in range(24):
        facts, pairs, predicted, measured = world(seed, kind, n_calibration + 300)
        known = slice(n_calibration)
        further = slice(n_calibration, None)
        intervals = calibrated(facts, pairs[known], predicted[known], measured[known])
        is_held = held(intervals, facts, pairs[further], predicted[further], measured[further])
        shares.append(is_held.mean())
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) > LEVEL - 3 * error
    if kind != "few":
        n_used = n_calibration if n_calibration < FEWEST_TO_LEARN else n_calibration // 2
        assert np.mean(shares) < LEVEL + 2 / (n_used + 1) + 3 * error


def test_each_number_of_unseen_genes_is_held_by_itself():
    shares = {0: [], 1: [], 2: []}
    for seed in range(10):
        facts, pairs, predicted, measured = world(seed, "normal", 3_000, with_unseen=True)
        known, further = slice(2_000), slice(2_000, None)
        intervals = calibrated(facts, pairs[known], predicted[known], measured[known])
        is_held = held(intervals, facts, pairs[further], predicted[further], measured[further])
        unseen = facts.n_unseen(genotypes(pairs[further]))
        for number, of_group in shares.items():
            of_group.append(is_held[unseen == number].mean())
    for of_group in shares.values():
        error = np.std(of_group) / np.sqrt(len(of_group))
        assert LEVEL - 3 * error < np.mean(of_group) < LEVEL + 0.03 + 3 * error


@given(seed=seeds, factor=st.floats(1e-3, 1e3), shift=st.floats(-100, 100))
@settings(deadline=None, max_examples=20)
def test_another_unit_moves_the_ends_with_the_scores(seed, factor, shift):
    facts, pairs, predicted, measured = world(seed, "normal", 500)
    sets = genotypes(pairs)
    ends = calibrated(facts, pairs, predicted, measured).around(facts, sets, predicted)
    other_facts = GeneDistances(facts.is_seen, factor * facts.distance)
    other = Intervals.calibrated(
        other_facts,
        sets,
        factor * predicted + shift,
        factor * measured + shift,
        center=shift,
        seed=0,
    ).around(other_facts, sets, factor * predicted + shift)
    assert np.allclose(other.low, factor * ends.low + shift, rtol=1e-6, atol=1e-6 * factor)
    assert np.allclose(other.high, factor * ends.high + shift, rtol=1e-6, atol=1e-6 * factor)


@given(seed=seeds)
@settings(deadline=None, max_examples=20)
def test_intervals_survive_json_and_do_not_depend_on_the_batch(seed):
    facts, pairs, predicted, measured = world(seed, "skewed", 600, with_unseen=True)
    intervals = calibrated(facts, pairs, predicted, measured)
    read = Intervals.from_json(json.loads(json.dumps(intervals.to_json())))
    whole = intervals.around(facts, genotypes(pairs), predicted)
    again = read.around(facts, genotypes(pairs[:7]), predicted[:7])
    turned = read.around(facts, genotypes(pairs[:7, ::-1].copy()), predicted[:7])
    for end in range(2):
        assert np.array_equal(whole[end][:7], again[end])
        assert np.array_equal(again[end], turned[end])


def test_uncertain_genes_have_wider_intervals_and_intervals_are_narrower_for_it():
    facts, pairs, predicted, measured = world(0, "normal", 4_000)
    intervals = calibrated(facts, pairs, predicted, measured)
    ends = intervals.around(facts, genotypes(pairs), predicted)
    width = ends.high - ends.low
    scale = facts.distance[pairs].max(axis=1)
    assert np.corrcoef(width, scale)[0, 1] > 0.9
    alike = Quantiles.of(measured - predicted)
    assert width.mean() < 0.95 * (alike.high - alike.low)


def test_a_group_that_was_not_calibrated_has_the_width_of_one_that_knows_less():
    facts, pairs, predicted, measured = world(0, "normal", 2_000, with_unseen=True)
    unseen = facts.n_unseen(genotypes(pairs))
    intervals = calibrated(facts, *(x[unseen == 1] for x in (pairs, predicted, measured)))
    assert set(intervals.by_unseen) == {1}
    ends = intervals.around(facts, genotypes(pairs), predicted)
    width = ends.high - ends.low
    # None are seen as well as in training: those with one unseen gene stand for them.
    assert width[unseen == 0].min() > 0
    # Beyond, nothing is known: the spread of the scores around their mean.
    of_scores = Quantiles.of(measured[unseen == 1])
    assert width[unseen == 2] == pytest.approx(of_scores.high - of_scores.low)


def test_few_rows_have_no_intervals():
    facts, pairs, predicted, measured = world(0, "normal", FEWEST_ROWS - 1)
    assert calibrated(facts, pairs, predicted, measured) is None
    assert Quantiles.of(measured) is None
