"""What counts as a positive, and that the sentence says so."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.errors import InputError
from deltacell.evaluate.hits import Threshold, positives
from deltacell.screen.grid import lists_only_hits

SCORES = [-0.5, -0.08, -0.01, 0.0, 0.02, 0.3]
ROWS = np.arange(6)


def test_a_hit_is_beyond_the_threshold_and_significant(pairs):
    screen = pairs(SCORES, complete=True, p_value=[0.001, 0.2, 0.01, 0.5, 0.5, 0.001])
    found = positives(screen, ROWS)
    np.testing.assert_array_equal(found.label, [1, 0, 0, 0, 0, 0])
    assert (found.among, found.direction) == ("tested", -1)
    assert "-0.08 or below with a p-value of at most 0.05 (1 of 6" in found.sentence
    by_score = positives(screen, ROWS, Threshold(p_value=None))
    np.testing.assert_array_equal(by_score.label, [1, 1, 0, 0, 0, 0])
    above = positives(screen, ROWS, Threshold(0.1, "above"))
    np.testing.assert_array_equal(above.label, [0, 0, 0, 0, 0, 1])
    assert above.direction == 1


def test_without_p_values_the_score_alone_decides_and_it_says_so(pairs):
    found = positives(pairs(SCORES, complete=True), ROWS, Threshold(-0.05))
    np.testing.assert_array_equal(found.label, [1, 1, 0, 0, 0, 0])
    assert "as these rows have no p-values" in found.sentence


def test_rows_that_cannot_be_told_are_left_out_and_counted(pairs):
    screen = pairs(
        [np.nan, -0.5, -0.5, 0, 0, 0], complete=True, p_value=[0.1, np.nan, 0.01, 1, 1, 1]
    )
    found = positives(screen, ROWS)
    np.testing.assert_array_equal(found.label, [np.nan, np.nan, 1, 0, 0, 0])
    assert "2 rows are left out: no score or no p-value" in found.sentence
    assert found.to_json()["rows"] == 4
    assert "1 row is left out: no score" in positives(screen, ROWS[1:]).sentence


HITS = [-0.5, -0.1, -0.09, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("p_value", [0.01, np.nan])
def test_on_a_list_of_hits_it_is_the_sign(pairs, p_value):
    screen = pairs(HITS, complete=False, p_value=p_value)
    assert lists_only_hits(screen)
    found = positives(screen, ROWS)
    np.testing.assert_array_equal(found.label, [1, 1, 1, 0, 0, 0])
    assert found.among == "hits"
    assert "lists only significant interactions" in found.sentence
    assert "negative from positive" in found.sentence
    assert "3 of 6" in found.sentence
    above = positives(screen, ROWS, Threshold(0.08, "above"))
    np.testing.assert_array_equal(above.label, [0, 0, 0, 1, 1, 1])


def test_signs_without_scores_are_a_list_of_hits(pairs):
    screen = pairs([np.nan] * 6, sign=np.array([-1, -1, 1, 1, 0, -1], dtype=np.int8))
    found = positives(screen, ROWS)
    np.testing.assert_array_equal(found.label, [1, 1, 0, 0, np.nan, 1])


@pytest.mark.parametrize(
    ("score", "columns"),
    [
        (HITS, {"complete": True}),
        (HITS, {"complete": None}),
        (SCORES, {"complete": False}),
        (HITS, {"complete": False, "p_value": [0.01, 0.01, 0.9, 0.9, 0.01, 0.01]}),
        (np.abs(HITS), {"complete": False, "phenotype": "fitness"}),
    ],
)
def test_what_is_no_list_of_hits(pairs, score, columns):
    assert not lists_only_hits(pairs(score, **columns))


def test_thresholds_that_cannot_be():
    for wrong in ({"side": "under"}, {"score": np.nan}, {"p_value": 2}):
        with pytest.raises(InputError) as caught:
            Threshold(**wrong)
        assert caught.value.code == "invalid-threshold"
