"""Conditions: a small grammar, and what they are told of an explanation."""

from __future__ import annotations

import pytest

from deltacell.errors import InputError
from deltacell.profile.explain import Account, Explanation, compare
from deltacell.profile.explain.explanation import read_condition


def two(a: Account, b: Account) -> Explanation:
    return Explanation("", (), (), "high", (a, b), comparison=compare(a, b))


A = Account("a", "run", {"forward": 1.0}, samples_per_step=10, steps_per_epoch=10)
B = Account(
    "b",
    "run",
    {"forward": 1.1, "data loading": 0.1},
    samples_per_step=8,
    steps_per_epoch=10,
    outside={"validation": 8.0},
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("slower > 10%", True),
        ("slower > 49.9%", True),
        ("slower > 50.1%", False),
        ("slower per sample<50.1%", True),
        ("slower per step > 19 %", True),
        ("slower per step > 21%", False),
        ("  SLOWER  per  epoch >= 1 ", True),
        ("slower per epoch > 1.99x", True),
        ("slower per epoch > 2.01x", False),
        ("slower <= -5%", False),
        ("data loading > 8%", True),
        ("data_loading > 9%", False),
        ("validation > 0%", False),
    ],
)
def test_what_holds(text, holds):
    assert read_condition(text).holds(two(A, B)) is holds


def test_it_is_told_with_its_value():
    assert read_condition("slower  > 10%").told(two(A, B)) == "slower > 10%: it is 50 %"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slower",
        "slower > ",
        "slower > ten",
        "> 10%",
        "slower == 1",
        "slower > 1e9999",
        "slower > 10% and more",
        "__import__('os')",
        "slower > 1;2",
        "data loading > 2x",
    ],
)
def test_what_is_no_condition(text):
    with pytest.raises(InputError):
        read_condition(text)


def test_a_name_that_was_meant():
    with pytest.raises(InputError, match="did you mean 'slower'"):
        read_condition("slowr > 10%")


def test_what_cannot_be_told():
    one = Explanation("", (), (), "high", (A,))
    with pytest.raises(InputError, match="compares two, and one was given"):
        read_condition("slower > 1%").holds(one)
    assert read_condition("forward > 99%").holds(one)
    trace = Account("t", "trace", {"forward": 1.0})
    for text in ("slower per sample > 1%", "slower per epoch > 1%"):
        with pytest.raises(InputError, match="cannot be told"):
            read_condition(text).holds(two(trace, trace))
    assert not read_condition("slower > 1%").holds(two(trace, trace))
