"""What a hit is: stated, or by the scale of the scores; kept on disk and by every selection."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.screen import Screen
from deltacell.screen.hit_rule import END_SHARE, HitOrigin, HitRule, LowMeaning

INTERACTION = pl.Series(["interaction"])
seeds = st.integers(0, 2**31)


def rule_of(score, phenotype=INTERACTION, *, only_hits=False):
    return HitRule.of_scores(np.asarray(score), phenotype, only_hits=only_hits)


def heavy(rng, scale, n=4_000):
    """Return noise of a scale with a few strong interactions, mostly negative."""
    score = rng.normal(0, scale, n)
    strong = rng.random(n) < 0.04
    return np.where(strong, score - 5 * scale * rng.exponential(size=n), score)


@given(seed=seeds, scale=st.floats(0.005, 0.12))
def test_scores_that_vary_as_those_of_sga_screens_have_their_thresholds(seed, scale):
    rule = rule_of(heavy(np.random.default_rng(seed), scale))
    assert (rule.low, rule.high, rule.origin) == (-0.08, 0.08, HitOrigin.SGA_SCALE)


@given(seed=seeds, scale=st.floats(0.6, 1.4))
def test_scores_in_units_of_their_noise_have_the_thresholds_of_s_scores(seed, scale):
    rule = rule_of(heavy(np.random.default_rng(seed), scale))
    assert (rule.low, rule.high, rule.origin) == (-2.5, 2.0, HitOrigin.S_SCALE)


@given(seed=seeds, factor=st.sampled_from([1e-6, 30.0, 1e5]), shift=st.sampled_from([0.0, 1e4]))
def test_hits_of_an_unknown_scale_are_the_ends_whatever_the_unit(seed, factor, shift):
    score = 3 + heavy(np.random.default_rng(seed), 1.0)
    rule = rule_of(score)
    other = rule_of(factor * score + shift)
    assert rule.origin == other.origin == HitOrigin.QUANTILES
    assert other.low == pytest.approx(factor * rule.low + shift)
    n_hits = rule.is_hit(score, np.full(len(score), np.nan)).sum()
    assert n_hits == pytest.approx(2 * END_SHARE * len(score), abs=3)


@given(seed=seeds)
def test_a_fitness_has_quantiles_and_a_low_one_is_sick(seed):
    score = np.random.default_rng(seed).normal(1, 0.1, 1_000)
    rule = rule_of(score, pl.Series(["fitness"]))
    assert (rule.origin, rule.low_means) == (HitOrigin.QUANTILES, LowMeaning.SICK)
    assert rule.low < 1 < rule.high


@given(seed=seeds)
def test_a_list_of_hits_of_sga_has_no_scores_around_zero(seed):
    rng = np.random.default_rng(seed)
    score = rng.choice([-1, 1], 500) * (0.08 + rng.exponential(0.08, 500))
    assert rule_of(score, only_hits=True).origin is HitOrigin.SGA_SCALE


@given(
    score=st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=20),
    low=st.floats(-9, 0),
    high=st.floats(0.01, 9),
)
def test_a_hit_is_at_or_beyond_a_threshold_and_significant(score, low, high):
    score = np.array(score, dtype=np.float32)
    rule = HitRule(low, high)
    unknown = np.full(len(score), np.nan)
    expected = (score <= np.float32(low)) | (score >= np.float32(high))
    assert np.array_equal(rule.is_hit(score, unknown) == 1, expected)
    assert np.array_equal(rule.is_low(score, unknown) == 1, score <= np.float32(low))
    assert not rule.is_hit(score, np.full(len(score), 0.06)).any()
    only_low = HitRule(low, None)
    assert np.array_equal(only_low.is_hit(score, unknown), rule.is_low(score, unknown))


def test_a_stated_rule_is_kept_on_disk_and_by_every_selection(screen, tmp_path):
    assert screen.stated_hits is None
    stated = screen.with_hits(-2.5, 2, p=0.01, low_means="positive")
    rule = HitRule(-2.5, 2.0, 0.01, LowMeaning.POSITIVE)
    assert stated.hit_rule == rule
    stated.save(tmp_path / "stated")
    screen.save(tmp_path / "found")
    loaded = Screen.load(tmp_path / "stated")
    for same in (loaded, stated.take([0, 1]), stated.merge("mean"), stated.where(study="b")):
        assert same.hit_rule == rule
    assert loaded.stats()["hits"] == rule.to_json()
    found = Screen.load(tmp_path / "found")
    assert found.stated_hits is None
    assert found.hit_rule == screen.hit_rule
    # What a hit is does not change what was measured.
    assert stated.checksum == screen.checksum
    assert Screen.concat([stated, stated]).hit_rule == rule
    assert Screen.concat([stated, screen]).stated_hits is None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"low": 1, "high": -1},
        {"low": "x"},
        {"low": -1, "p": 0},
        {"low": float("nan")},
        {"low": -1, "low_means": "green"},
        {"lowest": -1},
    ],
)
def test_impossible_hits_are_refused(values, refused):
    refused("invalid-hits", HitRule.of_values, values)


def test_a_config_states_hits():
    rule = HitRule.of_values({"low": -2.5, "p": 0.01, "low_means": "positive"})
    assert rule == HitRule(-2.5, None, 0.01, LowMeaning.POSITIVE)
