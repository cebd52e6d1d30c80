"""Checks of arguments: numbers in a range, words among those that are allowed."""

from __future__ import annotations

from collections.abc import Collection

from deltacell.base.errors import InputError, did_you_mean


def check_range(interval: str, **values: float) -> None:
    """Raise unless all values are in an interval such as ``"[0, 1)"``."""
    ends = interval[1:-1].split(",")
    low = float(ends[0])
    high = float(ends[1])
    for name, value in values.items():
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            what = f"{name} is {value}; expected a number in {interval}"
            raise InputError(what, code="out-of-range")


def check_choice(what: str, choice: str, allowed: Collection[str]) -> None:
    """Raise unless a choice, such as that of a metric, is an allowed one."""
    if choice not in allowed:
        message = f"unknown {what} '{choice}'{did_you_mean(choice, allowed)}; expected one of "
        raise InputError(message + ", ".join(allowed), code="unknown-choice")


def check_distinct(what: str, names: Collection[str]) -> None:
    """Raise if a name occurs twice."""
    if len(set(names)) != len(names):
        raise InputError(f"repeated {what}: {', '.join(names)}", code="repeated-name")
