"""Self times: of every moment one event."""

from __future__ import annotations

import numpy as np
import pytest
from made import Event, make_trace, row_of

from deltacell.profile.trace.self_time import nest, timeline
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def own(trace: Trace) -> dict[str, int]:
    times = nest(trace).self_time
    return {trace.text(row): int(times[row]) for row in range(len(trace))}


def parents(trace: Trace) -> dict[str, str | None]:
    rows = nest(trace).parent
    return {
        trace.text(row): None if rows[row] == NOTHING else trace.text(int(rows[row]))
        for row in range(len(trace))
    }


def test_what_nests_counts_once() -> None:
    trace = make_trace(
        [Event("a", 0, 100), Event("b", 10, 50), Event("c", 20, 5), Event("d", 70, 10)]
    )
    assert own(trace) == {"a": 40, "b": 45, "c": 5, "d": 10}
    assert parents(trace) == {"a": None, "b": "a", "c": "b", "d": "a"}


def test_what_begins_inside_and_ends_after_cuts_the_other_at_its_beginning() -> None:
    trace = make_trace([Event("a", 0, 10), Event("b", 5, 100), Event("c", 8, 4)])
    assert own(trace) == {"a": 5, "b": 96, "c": 4}
    assert parents(trace) == {"a": None, "b": None, "c": "b"}


def test_what_is_mostly_inside_lies_in_it_though_it_ends_after() -> None:
    # Times were rounded: the child seems to end a moment after its parent.
    trace = make_trace([Event("step", 0, 300), Event("a", 0, 100), Event("b", 10, 91)])
    assert own(trace) == {"step": 199, "a": 10, "b": 91}
    assert parents(trace) == {"step": None, "a": "step", "b": "a"}


def test_several_are_cut_at_once() -> None:
    trace = make_trace([Event("x", 0, 11), Event("a", 1, 9), Event("b", 2, 50)])
    assert own(trace) == {"x": 1, "a": 1, "b": 50}


def test_threads_do_not_see_each_other() -> None:
    trace = make_trace([Event("a", 0, 100), Event("b", 10, 50, thread="second")])
    assert own(trace) == {"a": 100, "b": 50}
    assert parents(trace) == {"a": None, "b": None}


def test_events_of_no_length_have_a_parent_and_hide_nothing() -> None:
    trace = make_trace(
        [
            Event("a", 0, 10),
            Event("first", 0, 0),
            Event("b", 4, 2),
            Event("in b", 5, 0),
            Event("after b", 6, 0),
            Event("after a", 10, 0),
        ]
    )
    assert own(trace)["a"] == 8
    assert parents(trace) == {
        "a": None,
        "first": "a",
        "b": "a",
        "in b": "b",
        "after b": "a",
        "after a": None,
    }


def test_collectives_that_run_beside_do_not_hold_what_begins_meanwhile() -> None:
    trace = make_trace(
        [
            Event("backward", 0, 100, Kind.annotation),
            Event("gloo:all_reduce", 10, 200, Kind.annotation),
            Event("aten::mul", 20, 5),
        ]
    )
    assert own(trace) == {"backward": 95, "gloo:all_reduce": 200, "aten::mul": 5}
    assert parents(trace)["aten::mul"] == "backward"


def test_a_negative_length_is_none() -> None:
    assert own(make_trace([Event("a", 0, 10), Event("b", 5, -3)])) == {"a": 10, "b": 0}


def test_an_empty_trace_has_no_self_times() -> None:
    assert len(nest(make_trace([])).self_time) == 0


def test_the_timeline_says_whose_each_moment_is() -> None:
    trace = make_trace([Event("a", 0, 10), Event("b", 2, 3), Event("c", 20, 5)])
    line = timeline(trace, nest(trace), 0)
    rows = line.at(np.array([-1, 0, 2, 4, 5, 9, 10, 19, 20, 24, 25]))
    names = [None if row == NOTHING else trace.text(int(row)) for row in rows]
    assert names == [None, "a", "b", "b", "a", "a", None, None, "c", "c", None]
    assert row_of(trace, "c") == 2


@pytest.mark.parametrize("crossing", [False, True])
def test_a_deep_stack_is_no_trouble(crossing: bool) -> None:
    depth = 500
    events = [Event(f"{i}", i, 2 * depth - 2 * i) for i in range(depth)]
    if crossing:
        events.append(Event("over", depth, depth + 7))
    times = nest(make_trace(events)).self_time
    assert times.sum() == 2 * depth + (7 if crossing else 0)
