"""Sync points: what asked for the value, and from where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import Event, make_trace, row_of

from deltacell.profile.trace.host import is_sync_call, sync_points
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def points(trace: Trace) -> list[dict[str, object]]:
    return list(sync_points(trace, nest(trace), find_steps(trace)).iter_rows(named=True))


def item(at: int, length: int, wait: int) -> list[Event]:
    return [
        Event("aten::item", at, length),
        Event("aten::_local_scalar_dense", at + 1, length - 2),
        Event("cudaStreamSynchronize", at + 2, wait, Kind.runtime),
    ]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpyAsync", False),
        ("cudaLaunchKernel", False),
        ("cudaEventQuery", False),
    ],
)
def test_calls_that_wait(name: str, waits: bool) -> None:
    assert is_sync_call(name) == waits


def test_what_asked_is_the_outermost_operator() -> None:
    step = Event("ProfilerStep#1", 0, 1000, Kind.annotation)
    metrics = Event("metrics", 10, 500, Kind.annotation)
    found = points(make_trace([step, metrics, *item(20, 100, 90), *item(200, 50, 40)]))
    assert len(found) == 1
    assert found[0]["operation"] == "aten::item"
    assert found[0]["call"] == "cudaStreamSynchronize"
    assert found[0]["range"] == "metrics"
    assert found[0]["site"] is None
    assert (found[0]["count"], found[0]["time"], found[0]["per_step"]) == (2, 130, 2.0)


def test_the_call_site_is_the_nearest_function_that_is_not_of_torch() -> None:
    trace = make_trace(
        [
            Event("ProfilerStep#1", 0, 1000, Kind.annotation),
            Event("train.py(12): main", 1, 900, Kind.python),
            Event("train.py(40): log", 2, 800, Kind.python),
            Event("torch/_tensor.py(7): item", 3, 700, Kind.python),
            *item(20, 100, 90),
        ]
    )
    assert points(trace)[0]["site"] == "train.py(40): log"


def test_the_call_site_of_old_traces_is_in_their_stacks() -> None:
    trace = make_trace([Event("ProfilerStep#1", 0, 1000, Kind.annotation), *item(20, 100, 90)])
    stack = np.full(len(trace), NOTHING, dtype=np.int32)
    stack[row_of(trace, "aten::item")] = 0
    text = "/env/site-packages/torch/tensor.py(3): item;train.py(40): log;train.py(12): main"
    assert points(replace(trace, stack=stack, stacks=(text,)))[0]["site"] == "train.py(40): log"


def test_a_copy_to_the_host_waits_unless_it_is_pinned() -> None:
    def copied(name: str) -> int:
        trace = make_trace(
            [
                Event("ProfilerStep#1", 0, 1000, Kind.annotation),
                Event("aten::to", 10, 100),
                Event("cudaMemcpyAsync", 20, 50, Kind.runtime, correlation=1),
                Event(name, 30, 20, Kind.copy, "stream 7", correlation=1),
            ]
        )
        return len(points(trace))

    assert copied("Memcpy DtoH (Device -> Pageable)") == 1
    assert copied("Memcpy DtoH (Device -> Pinned)") == 0
    assert copied("Memcpy HtoD (Pageable -> Device)") == 0


def test_only_counted_steps_are_looked_at() -> None:
    first = Event("ProfilerStep#1", 0, 1000, Kind.annotation)
    second = Event("ProfilerStep#2", 1000, 1000, Kind.annotation)
    assert points(make_trace([first, second, *item(20, 100, 90)])) == []
