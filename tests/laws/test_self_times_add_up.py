"""Self times add up, whatever the events of a thread look like."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "profile" / "trace"))

from made import Event, make_trace

from deltacell.profile.trace.attribution import attribute
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.self_time import nest, timeline
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

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


def own_times(trace: Trace) -> dict[str, int]:
    times = nest(trace).self_time.tolist()
    return {trace.text(row): time for row, time in enumerate(times)}


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
    assert own_times(alone).items() <= own_times(both).items()


@given(nested_events(), st.data())
@settings(max_examples=50, deadline=None)
def test_splitting_a_thread_changes_nothing(events: list[Event], data: st.DataObject) -> None:
    together = make_trace(events)
    whose = {}
    for event in events:
        name, parent = event.name.split("<")
        top = whose[parent] if parent else data.draw(st.sampled_from(["main", "second"]))
        whose[name] = top
    apart = make_trace([e._replace(thread=whose[e.name.split("<")[0]]) for e in events])
    assert own_times(apart) == own_times(together)


HOST = (
    ("phase.forward", Kind.annotation),
    ("phase.backward", Kind.annotation),
    ("model.part", Kind.annotation),
    ("gloo:all_reduce", Kind.annotation),
    ("enumerate(DataLoader)#_Single.__next__", Kind.annotation),
    ("MulBackward0", Kind.operator),
    ("aten::mul", Kind.operator),
    ("aten::nll_loss", Kind.operator),
    ("c10d::allreduce_", Kind.operator),
    ("train.py(3): main", Kind.python),
    ("cudaLaunchKernel", Kind.runtime),
    ("cudaStreamSynchronize", Kind.runtime),
)
DEVICE = (
    ("gemm", Kind.kernel),
    ("ncclKernel_AllReduce", Kind.kernel),
    ("Memcpy HtoD", Kind.copy),
    ("Memset", Kind.fill),
)


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Steps, or none, with anything in and around them, on host and device."""
    events = []
    at = draw(st.integers(0, 10))
    for number in range(draw(st.integers(0, 4))):
        length = draw(st.integers(0, 40))
        events.append(Event(f"ProfilerStep#{number}", at, length, Kind.annotation, "thread 0"))
        at += length + draw(st.integers(-3, 3))
        at = max(at, 0)
    for _ in range(draw(st.integers(1, 20))):
        on_device = draw(st.booleans())
        name, kind = draw(st.sampled_from(DEVICE if on_device else HOST))
        thread = f"stream {draw(st.integers(7, 8))}"
        events.append(
            Event(
                name,
                draw(st.integers(0, 100)),
                draw(st.integers(0, 40)),
                kind,
                thread if on_device else f"thread {draw(st.integers(0, 2))}",
                draw(st.integers(-1, 5)),
                draw(st.integers(-1, 3)),
            )
        )
    return events


def parts_by_hand(trace: Trace, begin: int, end: int) -> list[int]:
    """Return compute, communication, copies and idle, moment by moment."""
    parts = [0, 0, 0, 0]
    for moment in range(begin, end):
        running = (trace.begin <= moment) & (moment < trace.begin + trace.duration)
        names = [trace.text(row) for row in np.flatnonzero(running)]
        kinds = ("gemm", "nccl", "Mem")
        there = [any(name.startswith(kind) for name in names) for kind in kinds]
        parts[[*there, True].index(True)] += 1
    return parts


@given(programs())
@settings(max_examples=100, deadline=None)
def test_all_accounts_of_a_trace_add_up(events: list[Event]) -> None:
    trace = make_trace(events)
    if not (trace.duration > 0).any():
        return
    found = attribute(trace)
    steps = found.steps
    assert steps.counted.any()
    assert (steps.wall > 0).all()
    wall = int(steps.wall[steps.counted].sum())
    assert found.categories["time"].sum() == wall
    assert found.categories["share"].sum() == pytest.approx(1)
    assert found.operations["time"].sum() == wall
    assert found.doing["time"].sum() == wall
    assert 0 <= found.loader.share <= 1
    path = found.critical_path
    assert path.parts["time"].sum() in steps.wall[steps.counted].tolist()
    assert (path.stretches["begin"][1:] == path.stretches["end"][:-1]).all()
    if found.device is not None:
        assert found.device.idle["time"].sum() == (
            found.device.steps.filter("counted")["idle"].sum()
        )
        windows = found.device.windows
        for place, row in enumerate(found.device.steps.iter_rows(named=True)):
            by_hand = parts_by_hand(trace, int(windows.begin[place]), int(windows.end[place]))
            assert [row[part] for part in PARTS] == by_hand


@given(programs(), st.integers(1, 10**12))
@settings(max_examples=50, deadline=None)
def test_shifting_a_trace_changes_no_account(events: list[Event], shift: int) -> None:
    trace = make_trace(events)
    if not (trace.duration > 0).any():
        return
    there = attribute(trace)
    moved = attribute(make_trace([e._replace(begin=e.begin + shift) for e in events]))
    assert moved.categories.equals(there.categories)
    assert moved.operations.equals(there.operations)
    assert moved.critical_path.parts.equals(there.critical_path.parts)
    assert (moved.device is None) == (there.device is None)
    if moved.device is not None and there.device is not None:
        assert moved.device.steps.equals(there.device.steps)
        assert moved.device.idle.equals(there.device.idle)
