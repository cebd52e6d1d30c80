"""Every kind of cause has advice, and a change is the sum of more, larger and slower calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.explain.advice import ADVICE
from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.explain.programs import OperatorChange
from deltacell.profile.explain.split import split_of
from deltacell.profile.trace.calls import CallGroup
from deltacell.profile.trace.categories import Category

numbers = st.floats(0, 1e3)
sizes = st.none() | st.floats(1, 1e6)


def change(calls_a, calls_b, seconds_a, seconds_b, elements_a=None, elements_b=None):
    return OperatorChange(
        name="aten::mm",
        group=CallGroup.forward,
        calls_a=calls_a,
        calls_b=calls_b,
        seconds_a=seconds_a,
        seconds_b=seconds_b,
        elements_a=elements_a,
        elements_b=elements_b,
    )


def test_every_kind_and_category_has_advice_or_needs_none() -> None:
    assert set(ADVICE) == {*CauseKind, *Category}


changes = st.builds(change, numbers, numbers, numbers, numbers, sizes, sizes)


@given(changes)
@settings(max_examples=50, deadline=None)
def test_a_change_is_the_sum_of_its_split(changed: OperatorChange) -> None:
    assert split_of([changed]).change == pytest.approx(changed.change, abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "more", "larger", "slower"),
    [
        (change(2, 8, 1.0, 1.0), 6.0, None, 0.0),
        (change(2, 2, 1.0, 3.0), 0.0, None, 4.0),
        (change(2, 2, 1.0, 3.0, 10, 30), 0.0, 4.0, 0.0),
        (change(2, 2, 1.0, 3.0, 10, 20), 0.0, 2.0, 2.0),
        # Larger inputs of calls that became faster explain nothing.
        (change(2, 2, 3.0, 1.0, 10, 20), 0.0, 0.0, -4.0),
        (change(0, 2, 0.0, 1.0), 2.0, None, 0.0),
    ],
)
def test_a_change_is_split_into_more_larger_and_slower_calls(changed, more, larger, slower) -> None:
    split = split_of([changed])
    assert (split.more, split.larger, split.slower) == (more, larger, slower)
