"""Self times add up, whatever the events of a thread look like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import Event, make_trace, named

from deltacell.profile.trace import self_time
from deltacell.profile.trace.ancestors import count_above, first_open
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.device import PARTS, critical_stretches
from deltacell.profile.trace.self_time import nest, timeline
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Kind, Trace

HORIZON = 60


@st.composite
def any_events(draw: st.DrawFn) -> list[Event]:
    """Events that nest, overlap, repeat or have no length, on a few threads."""
    span = st.tuples(st.integers(0, HORIZON - 1), st.integers(0, 30), st.integers(0, 2))
    return [
        Event(f"event {place}", begin, length, thread=f"thread {thread}")
        for place, (begin, length, thread) in enumerate(draw(st.lists(span, max_size=25)))
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
        is_open = (trace.begin <= moment) & (moment < trace.begin + trace.duration)
        rows = np.flatnonzero(is_open & (trace.thread == thread))
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


@given(any_events(), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_the_number_of_levels_changes_no_parent(events: list[Event], most: int) -> None:
    trace = make_trace(events)
    by_level = nest(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_time, "_MANY_LEVELS", most)
        one_by_one = nest(trace)
    for name in ("parent", "within", "cut", "self_time"):
        np.testing.assert_array_equal(getattr(one_by_one, name), getattr(by_level, name))


@given(any_events())
@settings(max_examples=100, deadline=None)
def test_jumps_to_ancestors_are_steps_to_parents(events: list[Event]) -> None:
    trace = make_trace(events)
    nesting = nest(trace)
    within = nesting.within
    counted = trace.begin % 2 == 0
    rows = np.arange(len(trace), dtype=np.int32)
    times = trace.begin + 20
    above = first_open(rows, times, nesting.cut, within)
    counts = count_above(counted, within)
    for row in rows.tolist():
        place = row
        while place != NOTHING and nesting.cut[place] <= times[row]:
            place = int(within[place])
        assert above[row] == place
        ancestors = []
        place = int(within[row])
        while place != NOTHING:
            ancestors.append(place)
            place = int(within[place])
        assert counts[row] == counted[ancestors].sum()


def test_a_deep_stack_takes_few_rounds() -> None:
    n = 20_000
    events = [Event("a", i, 2 * (n - i) + 1) for i in range(n)]
    trace = make_trace(events)
    nesting = nest(trace)
    assert nesting.parent.tolist() == [NOTHING, *range(n - 1)]
    assert (nesting.self_time == 2).sum() == n - 1
    rounds = 0

    class Counted(np.ndarray):
        def __getitem__(self, index: object) -> object:
            nonlocal rounds
            rounds += 1
            return super().__getitem__(index)

    parent = nesting.within.view(Counted)
    assert count_above(np.ones(n, dtype=bool), parent).max() == n - 1
    assert rounds < 100


LOADER = "enumerate(DataLoader)#_Single.__next__"
NAMES = {
    Kind.annotation: ("phase.forward", "phase.backward", "model.part", "gloo:all_reduce", LOADER),
    Kind.operator: ("MulBackward0", "aten::mul", "aten::nll_loss", "c10d::allreduce_"),
    Kind.python: ("train.py(3): main",),
    Kind.runtime: ("cudaLaunchKernel", "cudaStreamSynchronize"),
    Kind.kernel: ("gemm", "ncclKernel_AllReduce"),
    Kind.copy: ("Memcpy HtoD",),
    Kind.fill: ("Memset",),
}
EVENTS = [(name, kind) for kind, names in NAMES.items() for name in names]


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Steps, or none, with anything in and around them, on host and device."""
    events = []
    at = draw(st.integers(0, 10))
    for number in range(draw(st.integers(0, 4))):
        length = draw(st.integers(0, 40))
        events.append(named(f"ProfilerStep#{number}", at, length, "thread 0"))
        at = max(at + length + draw(st.integers(-3, 3)), 0)
    for _ in range(draw(st.integers(1, 20))):
        name, kind = draw(st.sampled_from(EVENTS))
        begin, length = draw(st.integers(0, 100)), draw(st.integers(0, 40))
        lane = draw(st.integers(0, 2))
        thread = f"stream {min(lane, 1)}" if kind in ON_DEVICE else f"thread {lane}"
        numbers = draw(st.integers(-1, 5)), draw(st.integers(-1, 3))
        events.append(Event(name, begin, length, kind, thread, *numbers))
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
@settings(max_examples=50, deadline=None)
def test_all_accounts_of_a_trace_add_up(events: list[Event]) -> None:
    trace = make_trace(events)
    if not (trace.duration > 0).any():
        return
    found = Attribution(trace)
    steps = found.steps
    assert steps.counted.any()
    assert (steps.wall > 0).all()
    wall = int(steps.wall[steps.counted].sum())
    assert sum(found.seconds_per_step().values()) == pytest.approx(wall / found.n_counted / 1e9)
    assert found.doing["time"].sum() == wall
    assert 0 <= found.loader.share <= 1
    assert found.critical_path["time"].sum() in steps.wall[steps.counted].tolist()
    at = int(steps.end[found.typical])
    step = (int(steps.begin[found.typical]), at)
    for _, begin, end, _ in critical_stretches(trace, found.host, found.launch, *step):
        assert end == at
        at = begin
    assert at == step[0]
    if found.device is not None:
        assert found.device.idle["time"].sum() == (
            found.device.steps.filter("counted")["idle"].sum()
        )
        windows = found.device.windows
        for place, row in enumerate(found.device.steps.iter_rows(named=True)):
            by_hand = parts_by_hand(trace, int(windows.begin[place]), int(windows.end[place]))
            assert [row[part] for part in PARTS] == by_hand


@given(programs(), st.integers(1, 10**12))
@settings(max_examples=20, deadline=None)
def test_shifting_a_trace_changes_no_account(events: list[Event], shift: int) -> None:
    trace = make_trace(events)
    if not (trace.duration > 0).any():
        return
    there = Attribution(trace)
    moved = Attribution(make_trace([e._replace(begin=e.begin + shift) for e in events]))
    assert moved.per_step.equals(there.per_step)
    assert moved.doing.equals(there.doing)
    assert moved.critical_path.equals(there.critical_path)
    assert (moved.device is None) == (there.device is None)
    if moved.device is not None and there.device is not None:
        assert moved.device.steps.equals(there.device.steps)
        assert moved.device.idle.equals(there.device.idle)
