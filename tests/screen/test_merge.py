"""Merging repeated genotypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.screen import Genotypes, Screen

LAW = settings(max_examples=80, deadline=None)
N = 5


def by_set(screen):
    return [frozenset(g.tolist()) for g in screen.genotypes]


def test_mean(screen):
    merged = screen.merge("mean")
    assert by_set(merged) == [{0, 1}, {2, 3, 4}, {5}, {0, 1}]
    np.testing.assert_allclose(merged.column("score"), [-0.125, np.nan, 0.5, 0.75])
    np.testing.assert_allclose(
        merged.column("standard_deviation"), [1.3 / 3, np.nan, 0.1, 0.2], rtol=1e-6
    )
    assert np.isnan(merged.column("p_value")).all()
    assert merged.column("sign").tolist() == [-1, -1, 1, 0]
    assert merged.column("replicates").tolist() == [3, 1, 1, 1]
    assert merged.column("phenotype").tolist() == [*["interaction"] * 3, "fitness"]
    # What cannot be averaged is the first row's.
    assert merged.column("study").tolist() == ["a", "a", "b", "a"]
    assert merged.gene_column("allele").tolist()[:2] == ["x0", "x1"]


def test_median(screen):
    merged = screen.merge("median")
    np.testing.assert_array_equal(merged.column("score"), [-0.125, np.nan, 0.5, 0.75])


def test_best_p_takes_the_whole_row_and_the_earlier_of_a_tie(screen):
    merged = screen.merge("best-p")
    assert by_set(merged) == [{0, 1}, {2, 3, 4}, {5}, {0, 1}]
    assert merged.column("source_row").tolist() == [2, 1, 3, 5]
    assert merged.column("score").tolist()[0] == 0.25
    assert merged.column("p_value").tolist()[0] == 0.01
    assert merged.column("replicates").tolist() == [3, 1, 1, 1]
    assert merged.gene_column("allele").tolist()[:2] == ["x5", "x6"]


def test_hits_that_disagree_have_no_sign():
    screen = Screen.build(
        Genes(["a", "b", "c"]), Genotypes.of([[0, 1], [1, 0], [0, 2], [2, 0]]), sign=[1, -1, 1, 1]
    )
    assert screen.merge("mean").column("sign").tolist() == [0, 1]


def test_missing_deviation_makes_that_of_the_mean_missing():
    screen = Screen.build(
        Genes(["a", "b"]),
        Genotypes.of([[0, 1], [0, 1]]),
        score=[1.0, 2.0],
        standard_deviation=[0.1, np.nan],
    )
    assert np.isnan(screen.merge("mean").column("standard_deviation")).all()


def test_unknown_way_is_an_error(screen):
    with pytest.raises(InputError, match="cannot merge by 'sum'; by mean, median, best-p"):
        screen.merge("sum")


@st.composite
def screens(draw):
    gene = st.integers(0, N - 1)
    sets = draw(st.lists(st.lists(gene, min_size=1, max_size=3, unique=True), min_size=1))
    n = len(sets)
    number = st.floats(-2, 2, width=32) | st.just(float("nan"))
    column = st.lists(number, min_size=n, max_size=n)
    return Screen.build(
        Genes(f"g{i}" for i in range(N)),
        Genotypes.of(sets),
        score=draw(column),
        p_value=np.abs(draw(column)) / 2,
        standard_deviation=np.abs(draw(column)),
        phenotype=draw(
            st.lists(st.sampled_from(["interaction", "fitness"]), min_size=n, max_size=n)
        ),
        replicates=draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)),
    )


@LAW
@given(screens(), st.sampled_from(["mean", "median", "best-p"]))
def test_one_row_a_set_and_phenotype_and_its_score_within_theirs(screen, how):
    merged = screen.merge(how)
    groups = list(zip(by_set(screen), screen.column("phenotype"), strict=True))
    assert list(zip(by_set(merged), merged.column("phenotype"), strict=True)) == list(
        dict.fromkeys(groups)
    )
    assert merged.column("replicates").sum() == screen.column("replicates").sum()
    score, p = screen.column("score"), screen.column("p_value")
    for row, group in enumerate(dict.fromkeys(groups)):
        mine = np.array([g == group for g in groups])
        known = score[mine & np.isfinite(score)]
        value = merged.column("score")[row]
        if how == "best-p":
            smallest = np.nanargmin(np.where(np.isnan(p), np.inf, p)[mine])
            np.testing.assert_array_equal(value, score[mine][smallest])
        elif not len(known):
            assert np.isnan(value)
        else:
            expected = np.mean(known, dtype=np.float64) if how == "mean" else np.median(known)
            assert value == pytest.approx(expected, abs=1e-6)
            assert known.min() <= value <= known.max()


@LAW
@given(screens(), st.sampled_from(["mean", "median", "best-p"]))
def test_merging_twice_is_merging_once(screen, how):
    once = screen.merge(how)
    assert once.merge(how).equals(once)
