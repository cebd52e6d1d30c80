"""Measured, tested and not significant, or untested: by all of a screen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.predict.status import STATUSES, Statuses
from deltacell.screen import Genotypes, Screen
from deltacell.screen.coverage import Coverage, StudyCoverage

GENES = Genes([f"Y{i}" for i in range(8)])
COVERAGE = Coverage(
    (
        StudyCoverage("a", np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4]), np.array([4, 5]), True),
        StudyCoverage("b", np.array([6]), np.array([0, 1]), np.array([0]), True),
    )
)
ROWS = [[4, 0], [0, 4], [4, 2, 3], [6, 7], [1, 5], [7]]
SCREEN = Screen.build(
    GENES,
    Genotypes.of(ROWS),
    coverage=COVERAGE,
    score=[-0.5, -0.3, 0.2, 9.0, float("nan"), 0.9],
    phenotype=["interaction"] * 3 + ["fitness"] + ["interaction", "fitness"],
)


def status(*genes):
    return STATUSES[Statuses([SCREEN], ["interaction"]).of(np.array([sorted(genes)]))[0]]


def measured(*genes):
    return Statuses([SCREEN], ["interaction"]).measured(np.array([sorted(genes)]))[0]


def test_by_rows_and_coverage():
    assert status(0, 4) == "measured"
    assert status(0, 5) == "tested"
    assert status(4, 5) == "untested"
    assert status(2, 3, 5) == "tested"
    assert status(2, 3, 4) == "measured"
    assert status(0, 1, 4) == "untested"
    assert status(0, 6) == "tested"
    assert status(6, 1) == "untested"
    # A row of another phenotype, or without a score: the strain was made.
    assert status(6, 7) == "measured"
    assert status(1, 5) == "measured"
    assert status(7) == "measured"
    assert status(0) == "untested"


def test_the_mean_is_of_what_the_run_learned():
    assert measured(0, 4) == pytest.approx(-0.4)
    assert measured(2, 3, 4) == pytest.approx(0.2)
    assert np.isnan(measured(6, 7))
    assert np.isnan(measured(1, 5))
    assert np.isnan(measured(0, 5))
    assert np.isnan(measured(0))


def test_several_screens_count_together():
    other = Screen.build(GENES, Genotypes.of([[4, 5], [0, 4]]), score=[0.1, 0.5])
    both = Statuses([SCREEN, other], ["interaction"])
    assert both.of(np.array([[4, 5], [0, 4], [1, 2]])).tolist() == [0, 0, 2]
    assert both.measured(np.array([[0, 4]]))[0] == pytest.approx((-0.5 - 0.3 + 0.5) / 3)


def test_how_many_were_measured_of_some_genes():
    statuses = Statuses([SCREEN], ["interaction"])
    assert statuses.n_measured(2, np.arange(8)) == 3
    assert statuses.n_measured(2, np.array([0, 4, 5])) == 1
    assert statuses.n_measured(4, np.arange(8)) == 0


def test_whether_all_that_was_tested_is_known():
    assert Statuses([SCREEN], []).complete
    hits = StudyCoverage("h", np.array([0]), np.array([0, 1]), np.array([1]), False)
    screen = Screen.build(GENES, Genotypes.of([[0, 1]]), coverage=Coverage((hits,)), score=1.0)
    assert not Statuses([SCREEN, screen], []).complete


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 7), min_size=2, max_size=7), min_size=1, max_size=20))
def test_it_agrees_with_the_coverage(sets):
    statuses = Statuses([SCREEN], ["interaction"])
    for one in sets:
        row = sorted(one)
        crossed = COVERAGE.tested(np.array(row), np.array([0, len(row)]), 8)[0]
        there = any(sorted(r) == row for r in ROWS)
        expected = "measured" if there else "tested" if crossed else "untested"
        assert STATUSES[statuses.of(np.array([row]))[0]] == expected
