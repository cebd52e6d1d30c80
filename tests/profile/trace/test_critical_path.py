"""The critical path of a step, through host and device."""

from __future__ import annotations

from made import Event, make_trace

from deltacell.profile.trace.device import CriticalPath, critical_path, launches, typical
from deltacell.profile.trace.host import host_time
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import Kind, Trace


def path_of(trace: Trace) -> CriticalPath:
    steps = find_steps(trace)
    return critical_path(trace, steps, host_time(trace, nest(trace), steps), launches(trace))


def stretches(trace: Trace) -> list[tuple[str, int, int, str]]:
    rows = path_of(trace).stretches.iter_rows(named=True)
    return [(row["where"], row["begin"], row["end"], row["part"]) for row in rows]


STEP = Event("ProfilerStep#4", 0, 1000, Kind.annotation)


def test_without_a_wait_the_host_is_the_path() -> None:
    trace = make_trace(
        [
            STEP,
            Event("phase.forward", 0, 600, Kind.annotation),
            Event("cudaLaunchKernel", 10, 5, Kind.runtime, correlation=1),
            Event("gemm", 20, 900, Kind.kernel, "stream 7", 1),
        ]
    )
    assert stretches(trace) == [("host", 0, 600, "forward"), ("host", 600, 1000, "other")]


def test_where_the_host_waits_the_path_goes_over_the_device() -> None:
    trace = make_trace(
        [
            STEP,
            Event("phase.forward", 0, 900, Kind.annotation),
            Event("cudaLaunchKernel", 90, 10, Kind.runtime, correlation=1),
            Event("cudaLaunchKernel", 110, 10, Kind.runtime, correlation=2),
            Event("gemm", 120, 300, Kind.kernel, "stream 7", 1),
            Event("ncclKernel_AllReduce", 430, 370, Kind.kernel, "stream 7", 2),
            Event("cudaStreamSynchronize", 200, 610, Kind.runtime),
            Event("phase.optimizer", 900, 100, Kind.annotation),
        ]
    )
    assert stretches(trace) == [
        ("host", 0, 100, "forward"),
        ("launch", 100, 120, "waiting"),
        ("device", 120, 420, "compute"),
        ("launch", 420, 430, "waiting"),
        ("device", 430, 800, "communication"),
        ("host", 800, 900, "forward"),
        ("host", 900, 1000, "optimizer"),
    ]
    path = path_of(trace)
    assert path.number == 4
    assert path.parts["time"].sum() == 1000
    assert path.residual == 0


def test_a_kernel_that_the_device_was_ready_for_waited_for_its_launch() -> None:
    trace = make_trace(
        [
            STEP,
            Event("cudaLaunchKernel", 0, 10, Kind.runtime, correlation=1),
            Event("gemm", 20, 30, Kind.kernel, "stream 7", 1),
            Event("cudaLaunchKernel", 500, 10, Kind.runtime, correlation=2),
            Event("gemm", 520, 100, Kind.kernel, "stream 7", 2),
            Event("cudaDeviceSynchronize", 550, 450, Kind.runtime),
        ]
    )
    assert [row[:3] for row in stretches(trace)] == [
        ("host", 0, 510),
        ("launch", 510, 520),
        ("device", 520, 620),
        ("host", 620, 1000),
    ]


def test_a_wait_with_nothing_to_wait_for_is_the_hosts() -> None:
    trace = make_trace([STEP, Event("cudaDeviceSynchronize", 550, 450, Kind.runtime)])
    assert [row[:3] for row in stretches(trace)] == [("host", 0, 1000)]


def test_the_typical_step_is_counted_and_nearest_to_the_median() -> None:
    events, at = [], 0
    for place, length in enumerate([100, 90, 100, 400]):
        events.append(Event(f"ProfilerStep#{place}", at, length, Kind.annotation))
        at += length
    assert typical(find_steps(make_trace(events))) == 2
