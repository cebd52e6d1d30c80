"""Law: the phases of a row add up to its wall time, and rows follow without a gap."""

import tempfile
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.phases import PhaseTimer

phases = st.sampled_from(PHASES)
ticks = st.integers(0, 10**12)
actions = st.one_of(
    st.tuples(st.just("switch"), ticks, phases),
    st.tuples(st.just("enter"), ticks, phases),
    st.tuples(st.just("exit"), ticks),
    st.tuples(st.just("move"), ticks, phases, phases, st.floats(0, 1e4)),
    st.tuples(st.just("end_step"), ticks, st.sampled_from(["train", "between"])),
    st.tuples(st.just("flush"), ticks),
)


@settings(max_examples=100, deadline=None)
@given(start=st.integers(0, 2**52), script=st.lists(actions, max_size=40))
def test_time_goes_to_the_current_phase_and_rows_are_contiguous(start, script):
    clock = SimpleNamespace(now=start)
    timer = PhaseTimer(clock=lambda: clock.now)
    ended, expected, row = [], [], Counter()
    with tempfile.TemporaryDirectory() as folder:
        blocks: list[ExitStack] = []
        for name, tick, *rest in script:
            clock.now += tick
            row[timer.current] += tick
            if name == "switch":
                timer.switch(*rest)
                assert timer.current == rest[0]
            elif name == "enter":
                blocks.append(ExitStack())
                blocks[-1].enter_context(timer.phase(*rest))
            elif name == "exit" and blocks:
                blocks.pop().close()
            elif name == "move":
                moved = timer.move(*rest)
                assert 0 <= moved <= rest[-1] + 1e-9
                row[rest[0]] -= round(moved * 1e9)
                row[rest[1]] += round(moved * 1e9)
            elif name == "end_step":
                timer.end_step(0, len(ended) + 1, 2, *rest)
                ended.append(clock.now)
                expected.append([row[phase] for phase in PHASES])
                row = Counter()
            elif name == "flush":
                timer.flush(folder, 0, 0)
        timer.flush(folder, 0, 0)
        rows = read_phases(Path(folder))

    spent = [_nanoseconds(rows[f"{phase}_s"]) for phase in PHASES]
    edges = [start, *ended]
    assert _nanoseconds(rows["begin_s"]) == [edge - start for edge in edges[:-1]]
    assert _nanoseconds(rows["wall_s"]) == [b - a for a, b in pairwise(edges)]
    assert [list(row) for row in zip(*spent, strict=True)] == expected
    assert [sum(row) for row in expected] == _nanoseconds(rows["wall_s"])
    assert all(value >= 0 for column in spent for value in column)


def _nanoseconds(seconds) -> list[int]:
    # A float64 of seconds gives back every nanosecond of the first month.
    return [round(value * 1e9) for value in seconds.to_list()]
