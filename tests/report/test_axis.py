"""Axes of drawings: values where they belong, and round numbers beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.report.page import Axis

VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 6)), min_size=1, max_size=20)


@given(VALUES)
def test_all_values_lie_inside_and_in_order(values: list[float]) -> None:
    axis = Axis.over(values, 200, 10)
    places = [axis.at(value) for value in sorted(values)]
    assert all(10 <= place <= 200 for place in places)
    assert places == sorted(places, reverse=True)


@given(VALUES, st.integers(2, 8))
def test_ticks_are_few_inside_and_what_they_say(values: list[float], about: int) -> None:
    axis = Axis.over(values, 0, 1000)
    ticks = axis.ticks(about)
    assert len(ticks) <= about + 1
    assert len({text for _, text in ticks}) == len(ticks)
    for place, text in ticks:
        assert -0.1 <= place <= 1000.1
        said = float(text.replace(",", "").replace("−", "-"))
        assert axis.at(said) == pytest.approx(place, abs=0.2)


def test_round_numbers_are_round() -> None:
    assert [text for _, text in Axis(-0.62, 0.58, 0, 1).ticks(5)] == ["−0.5", "0.0", "0.5"]
    assert [text for _, text in Axis(0, 1000, 0, 1).ticks(5)] == [
        "0", "200", "400", "600", "800", "1,000",
    ]  # fmt: skip


@pytest.mark.parametrize("values", [[], [0.0], [3.0, 3.0], [-1e-9]])
def test_one_value_or_none_is_an_axis_too(values: list[float]) -> None:
    axis = Axis.over(values, 0, 100)
    assert axis.low < axis.high
    assert axis.ticks()
