"""What differs between two traces whatever the noise of their steps.

Steps that take equally long may hold different work: other kernels, or a device that computes
longer while the host, which sets the pace, takes as long as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltacell.profile.explain.account import Waterfall
from deltacell.profile.explain.causes import BusyTime, OtherOperations, Timed
from deltacell.profile.explain.judge import computing_change
from deltacell.profile.explain.noise import Pace, difference
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.view import View

PART = 0.05  # of the computing, or of a step without a device: a smaller one is not named
MOST_NAMED = 2  # operations of each side

Certain = BusyTime | OtherOperations


def certain_differences(pair: ProgramPair) -> list[Certain]:
    """Return the difference in the device's computing time, and operations that only one has."""
    differences: list[Certain] = []
    busy = _busy_time(pair)
    if busy is not None:
        differences.append(busy)
    others = _other_operations(pair)
    if others is not None:
        differences.append(others)
    return differences


def _busy_time(pair: ProgramPair) -> BusyTime | None:
    a = pair.a
    b = pair.b
    if not a.parts or not b.parts:
        return None
    pace = Pace("device", a.kernel_spread, b.kernel_spread)
    busy = difference(a.kernel_times, b.kernel_times, pace)
    if busy is None or not busy.is_beyond:
        return None
    fall = Waterfall.between("step", {"compute": a.kernels}, {"compute": b.kernels})
    change = computing_change(pair, fall.gap)
    return BusyTime(a.name, b.name, a.kernels, b.kernels, change.detail)


def _other_operations(pair: ProgramPair) -> OtherOperations | None:
    """Return the kernels that only one side has, or the operators if there is no device."""
    a = pair.a
    b = pair.b
    if a.parts and b.parts:
        in_a = a.by("kernels", "compute")
        in_b = b.by("kernels", "compute")
        what = "kernels"
    else:
        in_a = _operator_seconds(pair, a)
        in_b = _operator_seconds(pair, b)
        what = "operators"
    only_a = _only(in_a, in_b)
    only_b = _only(in_b, in_a)
    if not only_a and not only_b:
        return None
    return OtherOperations(what, a.name, b.name, only_a, only_b)


def _operator_seconds(pair: ProgramPair, view: View) -> dict[str, float]:
    """Return the seconds per step of the operators that no other operator called."""
    seconds: dict[str, float] = {}
    for change in pair.operators:
        calls = change.calls_a if view is pair.a else change.calls_b
        per_call = change.seconds_a if view is pair.a else change.seconds_b
        if calls:
            seconds[change.name] = seconds.get(change.name, 0.0) + calls * per_call
    return seconds


def _only(here: Mapping[str, float], there: Mapping[str, float]) -> tuple[Timed, ...]:
    """Return the largest operations that the other side does not have."""
    least = PART * sum(here.values())
    own = [Timed(name, s) for name, s in here.items() if s >= least and not there.get(name)]
    own.sort(key=lambda operation: (-operation.seconds, operation.name))
    return tuple(own[:MOST_NAMED])
