"""A difference of two traces, split into more calls, larger calls and slower calls.

For each operator, kernel, range or module with n calls of t seconds each,

    n_b * t_b - n_a * t_a = (n_b - n_a) * t_a + n_b * (t_b - t_a)

The first term is that of more calls. Of the second, as much is that of larger inputs as t_a would
grow if it were proportional to the elements of the inputs; the rest is that of slower calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from deltacell.profile.explain.programs import OperatorChange, ProgramPair
from deltacell.profile.explain.view import View
from deltacell.profile.trace.calls import CallGroup


@dataclass(frozen=True)
class DifferenceSplit:
    """Seconds per step that B spends more, by reason. ``larger`` is None if sizes are unknown."""

    more: float
    larger: float | None
    slower: float

    @property
    def change(self) -> float:
        """The sum of the reasons: seconds per step that B spends more."""
        return self.more + (self.larger or 0.0) + self.slower


def split_of(changes: Iterable[OperatorChange]) -> DifferenceSplit:
    """Return the sum of the splits of some operators; that of no operators is zero."""
    more = 0.0
    larger = 0.0
    slower = 0.0
    has_sizes = False
    for change in changes:
        by_size = _by_larger_inputs(change)
        has_sizes |= by_size is not None
        more += change.by_more_calls
        larger += by_size or 0.0
        slower += change.change - change.by_more_calls - (by_size or 0.0)
    return DifferenceSplit(more, larger if has_sizes else None, slower)


def _by_larger_inputs(change: OperatorChange) -> float | None:
    ratio = change.ratio_of_elements
    if ratio is None or not change.calls_a:
        return None
    by_size = change.calls_b * change.seconds_a * (ratio - 1)
    by_time = change.change - change.by_more_calls
    # A call that did not become slower is not slower because of its inputs.
    bounded = min(abs(by_size), abs(by_time))
    return math.copysign(bounded, by_time) if by_size * by_time > 0 else 0.0


def kernel_changes(a: View, b: View) -> list[OperatorChange]:
    """Return the kernels of both, by launches per step; their inputs are not recorded."""
    return list(_changes(_kernels(a), _kernels(b)))


def component_changes(pair: ProgramPair) -> list[OperatorChange]:
    """Return the ranges and modules of both, with everything inside; times of one may be 0.

    Nested components count more than once, so these changes do not add up to that of a step.
    """
    return list(_changes(_components(pair.a), _components(pair.b)))


_Counted = dict[str, tuple[float, float]]  # calls per step, and seconds of one


def _kernels(view: View) -> _Counted:
    rank = view.ranks[0]
    counted = rank.work.kernels.group_by("name").agg(pl.sum("count"), pl.sum("time"))
    return {
        name: (count / rank.n_counted, time / count / 1e9)
        for name, count, time in counted.iter_rows()
        if count
    }


def _components(view: View) -> _Counted:
    calls = view.calls.components
    return {name: (n, view.component(name) / n) for name, n in calls.items() if n}


def _changes(a: _Counted, b: _Counted) -> Iterator[OperatorChange]:
    for name in {**a, **b}:
        calls_a, seconds_a = a.get(name, (0.0, 0.0))
        calls_b, seconds_b = b.get(name, (0.0, 0.0))
        yield OperatorChange(
            name=name,
            group=CallGroup.other,
            calls_a=calls_a,
            calls_b=calls_b,
            seconds_a=seconds_a,
            seconds_b=seconds_b,
        )
