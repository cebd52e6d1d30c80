"""Self times add up, whatever the events of a thread look like."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

_PATH = Path(__file__).resolve().parents[1] / "profile" / "trace" / "made.py"
if "made" not in sys.modules:
    _SPEC = importlib.util.spec_from_file_location("made", _PATH)
    assert _SPEC is not None
    assert _SPEC.loader is not None
    _MODULE = importlib.util.module_from_spec(_SPEC)
    sys.modules["made"] = _MODULE
    _SPEC.loader.exec_module(_MODULE)

from made import Event, make_trace  # noqa: E402

from deltacell.profile.trace.self_time import nest, timeline  # noqa: E402
from deltacell.profile.trace.trace import NOTHING, Trace  # noqa: E402

HORIZON = 60


@st.composite
def any_events(draw: st.DrawFn, threads: int = 3) -> list[Event]:
    """Events that nest, overlap, repeat or have no length, on a few threads."""
    spans = draw(
        st.lists(
            st.tuples(st.integers(0, HORIZON - 1), st.integers(0, 30), st.integers(0, threads - 1)),
            max_size=25,
        )
    )
    return [
        Event(f"event {place}", begin, length, thread=f"thread {thread}")
        for place, (begin, length, thread) in enumerate(spans)
    ]


@st.composite
def nested_events(draw: st.DrawFn) -> list[Event]:
    """Events that nest, with their true parents in their names: ``child<parent``."""
    events: list[Event] = []

    def fill(begin: int, end: int, parent: str, depth: int) -> None:
        at = begin
        while at < end and depth < 5 and len(events) < 40:
            start = draw(st.integers(at, end))
            stop = draw(st.integers(start, end))
            if stop == start:
                return
            name = f"{len(events)}"
            events.append(Event(f"{name}<{parent}", start, stop - start))
            fill(start, stop, name, depth + 1)
            at = stop

    fill(0, 200, "", 0)
    return events


def owners(trace: Trace, thread: int, horizon: int) -> list[int]:
    """Return the event of each moment: of those that are open the one that began last."""
    found = []
    for moment in range(horizon):
        is_open = ((trace.begin <= moment) & (moment < trace.begin + trace.duration)) & (
            trace.thread == thread
        )
        rows = np.flatnonzero(is_open)
        found.append(int(rows[-1]) if len(rows) else NOTHING)
    return found


@given(any_events())
@settings(max_examples=100, deadline=None)
def test_every_moment_belongs_to_the_open_event_that_began_last(events: list[Event]) -> None:
    trace = make_trace(events)
    nesting = nest(trace)
    assert nesting.residual == 0
    moments = np.arange(2 * HORIZON)
    for thread in range(len(trace.threads)):
        truth = owners(trace, thread, 2 * HORIZON)
        rows = np.flatnonzero(trace.thread == thread)
        assert nesting.self_time[rows].tolist() == [truth.count(row) for row in rows.tolist()]
        assert timeline(trace, nesting, thread).at(moments).tolist() == truth


@given(nested_events())
@settings(max_examples=100, deadline=None)
def test_parents_of_what_nests_are_the_true_ones(events: list[Event]) -> None:
    trace = make_trace(events)
    nesting = nest(trace)
    for row in range(len(trace)):
        name, parent = trace.text(row).split("<")
        over = int(nesting.parent[row])
        found = "" if over == NOTHING else trace.text(over).split("<")[0]
        same = over != NOTHING and (
            trace.begin[over] == trace.begin[row] and trace.duration[over] == trace.duration[row]
        )
        # Two events of the same bounds cannot be told apart.
        assert found == parent or same, name


@given(any_events(), st.integers(1, 10**15))
@settings(max_examples=50, deadline=None)
def test_shifting_changes_nothing(events: list[Event], shift: int) -> None:
    there = nest(make_trace(events))
    moved = nest(make_trace([event._replace(begin=event.begin + shift) for event in events]))
    assert moved.self_time.tolist() == there.self_time.tolist()
    assert moved.parent.tolist() == there.parent.tolist()


@given(any_events(threads=1), any_events(threads=1))
@settings(max_examples=50, deadline=None)
def test_another_thread_changes_nothing(events: list[Event], others: list[Event]) -> None:
    alone = make_trace(events)
    both = make_trace(
        events + [event._replace(name=f"other {event.name}", thread="z") for event in others]
    )
    times = nest(both).self_time
    found = {both.text(row): int(times[row]) for row in range(len(both))}
    for row, time in enumerate(nest(alone).self_time.tolist()):
        assert found[alone.text(row)] == time
