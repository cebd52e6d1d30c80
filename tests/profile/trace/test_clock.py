"""A clock that jumps while a trace is recorded."""

import json

import numpy as np
import pytest

from deltacell.profile.explain import explain
from deltacell.profile.trace.clock import LEFT, without_jumps
from deltacell.profile.trace.read import read_trace

SECOND = 10**9


def test_a_trace_without_jumps_stays_as_it_is():
    begin, duration = np.array([0, 5, 10]) * SECOND, np.array([20, 1, 3]) * SECOND
    times = without_jumps(begin, duration)
    assert times.removed == ()
    assert times.begin is begin
    assert times.duration is duration
    # Two hours of a trace of an hour are a pause.
    minutes = np.append(np.arange(60), 180)
    begin, duration = 60 * SECOND * minutes, np.full(61, SECOND)
    assert without_jumps(begin, duration).removed == ()


@pytest.mark.parametrize("jump", [3600 * SECOND, SECOND * SECOND])
def test_a_jump_is_cut_out_of_pauses_and_events(jump):
    often = np.arange(100)  # events of a nanosecond after the second jump
    begin = np.concatenate([[0, 1, 3, jump + 10, jump + 12], 3 * jump + 2 * often])
    end = np.concatenate([[jump + 13, 4, 3, jump + 11, jump + 13], 3 * jump + 2 * often + 1])
    times = without_jumps(begin, end - begin)
    assert times.removed == (jump + 6 - LEFT, 2 * jump - 13 - LEFT)
    second, third = 4 + LEFT, 7 + 2 * LEFT
    assert times.begin.tolist() == [0, 1, 3, second, second + 2, *(third + 2 * often)]
    assert times.duration.tolist() == [second + 3, 3, 0, 1, 1, *(1 for _ in often)]
    assert (np.diff(times.begin) >= 0).all()


@pytest.mark.parametrize("events", [2, 4, 1_000])
def test_events_that_are_hours_apart_stay(events):
    times = without_jumps(np.arange(events) * 3600 * SECOND, np.full(events, 1_000))
    assert times.removed == ()


def test_a_step_does_not_take_thirty_years(tmp_path):
    events = []
    for step in range(6):
        at = step * 1000.0 + (1e15 if step > 3 else 0)
        if step == 3:
            events.append(("user_annotation", f"ProfilerStep#{step}", at, 1e15 + 900))
        else:
            events.append(("user_annotation", f"ProfilerStep#{step}", at, 900.0))
        events.append(("cpu_op", "aten::mul", at + 100, 500.0))
    written = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": duration}
        for cat, name, ts, duration in events
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": written}))
    trace = read_trace(path)
    assert any("clock jumped" in warning for warning in trace.warnings)
    assert (trace.begin + trace.duration).max() < SECOND
    result = explain(path).to_json()
    assert "clock jumped" in json.dumps(result["warnings"])
    assert 0 < result["accounts"][0]["step_s"] < 1
