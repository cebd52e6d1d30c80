"""Scores as they are written and drawn."""

from __future__ import annotations

import math

import pytest

from deltacell.report.page import ScoreScale


@pytest.mark.parametrize(
    ("scores", "score", "text"),
    [
        ([-0.8, 0.4], -0.81251, "−0.813"),
        ([-0.8, 0.4], 0.25, "+0.250"),
        ([-0.8, 0.4], -0.0001, "0.000"),
        ([12.0], 3.14159, "+3.1"),
        ([1234.0], 1234.4, "+1,234"),
        ([0.00123], 0.00123, "+0.00123"),
        ([], 0.5, "+0.50"),
        ([None, math.nan, 0.5], None, "–"),
        ([None, math.nan, 0.5], math.nan, "–"),
    ],
)
def test_as_many_decimals_as_the_largest_needs(
    scores: list[float | None], score: float | None, text: str
) -> None:
    assert ScoreScale(scores).text(score) == text


def test_a_bar_goes_from_nothing_to_the_score() -> None:
    scale = ScoreScale.of([{"score": -0.5, "spread": 0.25}, {"score": 0.25, "spread": None}])
    assert scale.bar(-0.5, 0.25) == {
        "zero": "75.000%",
        "x": "25.000%",
        "width": "50.000%",
        "side": "less",
        "from": "0.000%",
        "to": "50.000%",
    }
    bar = scale.bar(0.25, None)
    assert bar is not None
    assert (bar["x"], bar["width"], bar["side"]) == ("75.000%", "25.000%", "more")
    assert scale.bar(None, None) is None


def test_scores_that_are_all_nothing_are_drawn() -> None:
    bar = ScoreScale([0.0, 0.0]).bar(0.0, None)
    assert bar is not None
    assert bar["width"] == "0.000%"
