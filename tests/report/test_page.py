"""What pages and tables are made of: axes, scales, numbers, blocks of JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.report.page import Axis, ScoreScale, json_block

VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 6)), min_size=1, max_size=20)


@given(VALUES, st.integers(2, 8))
def test_values_lie_inside_in_order_and_ticks_are_few_and_what_they_say(values, about):
    axis = Axis.over(values, 0, 1000)
    places = [axis.at(value) for value in sorted(values)]
    assert all(0 <= place <= 1000 for place in places)
    assert places == sorted(places)
    ticks = axis.ticks(about)
    assert len(ticks) <= about + 1
    assert len({text for _, text in ticks}) == len(ticks)
    for place, text in ticks:
        assert -0.1 <= place <= 1000.1
        said = float(text.replace(",", "").replace("−", "-"))
        assert axis.at(said) == pytest.approx(place, abs=0.2)


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
def test_as_many_decimals_as_the_largest_needs(scores, score, text):
    assert ScoreScale(scores).text(score) == text


def test_a_bar_goes_from_zero_to_the_score():
    scale = ScoreScale.of([{"score": -0.5, "spread": 0.25}, {"score": 0.25, "spread": None}])
    ends = {"from": "0.000%", "to": "50.000%"}
    bar = {"zero": "75.000%", "x": "25.000%", "width": "50.000%", "side": "less", **ends}
    assert scale.bar(-0.5, 0.25) == bar
    other = scale.bar(0.25, None) or {}
    assert (other["x"], other["width"], other["side"]) == ("75.000%", "25.000%", "more")
    assert scale.bar(None, None) is None
    assert (ScoreScale([0.0, 0.0]).bar(0.0, None) or {})["width"] == "0.000%"


@given(st.lists(st.text()))
def test_nothing_ends_a_block_of_json(texts):
    block = str(json_block(texts))
    assert block.isascii()
    assert not set("<>&") & set(block)
    for text, read in zip(texts, json.loads(block), strict=True):
        assert read.isprintable()
        assert read == text or not text.isprintable()
