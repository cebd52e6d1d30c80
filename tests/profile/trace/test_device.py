"""The device's time: parts that add up, and what an idle device waits for."""

from __future__ import annotations

import pytest
from made import Event, make_trace

from deltacell.profile.trace.device import DeviceTime, device_time, launches
from deltacell.profile.trace.host import host_time
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def device_of(trace: Trace) -> DeviceTime:
    steps = find_steps(trace)
    found = device_time(trace, steps, host_time(trace, nest(trace), steps))
    assert found is not None
    return found


def step(length: int = 1000) -> Event:
    return Event("ProfilerStep#1", 0, length, Kind.annotation)


def kernel(name: str, begin: int, length: int, number: int, stream: str = "stream 7") -> Event:
    return Event(name, begin, length, Kind.kernel, stream, number)


def launch(begin: int, length: int, number: int) -> Event:
    return Event("cudaLaunchKernel", begin, length, Kind.runtime, correlation=number)


def test_only_what_nothing_hides_is_exposed() -> None:
    trace = make_trace(
        [
            step(),
            kernel("gemm", 100, 200, 1),
            kernel(NCCL, 200, 300, 2, "stream 9"),
            Event("Memcpy HtoD", 450, 150, Kind.copy, "stream 11", 3),
            Event("Memset (Device)", 700, 10, Kind.fill, "stream 7", 4),
        ]
    )
    row = device_of(trace).steps.row(0, named=True)
    assert row["compute"] == 200
    assert row["communication"] == 200
    assert row["copies"] == 100 + 10
    assert row["idle"] == 1000 - 200 - 200 - 110
    kernels = device_of(trace).kernels
    assert (kernels.begin, kernels.end) == (100, 710)
    assert kernels.idle == 100
    parts = (kernels.compute, kernels.communication, kernels.copies, kernels.idle)
    assert sum(parts) == kernels.wall


def test_what_runs_over_the_end_of_a_step_is_cut_there_but_counted_where_launched() -> None:
    events = [
        Event("ProfilerStep#1", 0, 100, Kind.annotation),
        Event("ProfilerStep#2", 100, 100, Kind.annotation),
        launch(50, 5, 1),
        kernel("gemm", 80, 60, 1),
    ]
    steps = device_of(make_trace(events)).steps
    assert steps["compute"].to_list() == [20, 40]
    assert steps["kernels"].to_list() == [60, 0]


def test_an_idle_device_that_waits_for_the_loader() -> None:
    trace = make_trace(
        [
            step(),
            launch(0, 5, 1),
            kernel("gemm", 10, 90, 1),
            Event("enumerate(DataLoader)#_Single.__next__", 50, 800, Kind.annotation),
            launch(860, 5, 2),
            kernel("gemm", 870, 130, 2),
        ]
    )
    device = device_of(trace)
    gap = device.gaps.row(0, named=True)
    assert (gap["begin"], gap["length"], gap["reason"]) == (100, 770, "data")
    assert gap["host"].startswith("enumerate(DataLoader)")
    assert gap["next"] == "gemm"
    assert gap["launch"] == "cudaLaunchKernel"
    assert device.idle["reason"][0] == "data"


def test_an_idle_device_whose_host_had_waited_for_it() -> None:
    trace = make_trace(
        [
            step(),
            launch(0, 5, 1),
            kernel("gemm", 10, 190, 1),
            Event("aten::item", 20, 200),
            Event("cudaStreamSynchronize", 30, 180, Kind.runtime),
            launch(400, 5, 2),
            kernel("gemm", 410, 590, 2),
        ]
    )
    gap = device_of(trace).gaps.row(0, named=True)
    assert (gap["begin"], gap["length"], gap["reason"]) == (200, 210, "sync")


def test_an_idle_device_whose_host_launches_more_slowly_than_it_computes() -> None:
    events = [step()]
    for i in range(10):
        events += [
            Event("aten::add", 100 * i, 95),
            launch(100 * i + 40, 50, i),
            kernel("add", 100 * i + 92, 4, i),
        ]
    device = device_of(make_trace(events))
    assert device.idle.row(0, named=True)["reason"] == "launch"
    small = device.small.row(0, named=True)
    assert (small["kernel"], small["count"], small["time"]) == ("add", 10, 40)
    assert small["launch_time"] == 500


def test_an_idle_device_whose_work_is_launched_waits_for_itself() -> None:
    trace = make_trace(
        [
            step(),
            launch(0, 5, 1),
            launch(10, 5, 2),
            kernel("gemm", 20, 100, 1),
            kernel("gemm", 600, 400, 2),
        ]
    )
    gap = device_of(trace).gaps.row(0, named=True)
    assert (gap["begin"], gap["length"], gap["reason"]) == (120, 480, "device")


def test_an_idle_device_whose_host_is_in_python() -> None:
    trace = make_trace(
        [
            step(),
            launch(0, 5, 1),
            kernel("a", 10, 90, 1),
            launch(900, 5, 2),
            kernel("b", 910, 90, 2),
        ]
    )
    gap = device_of(trace).gaps.row(0, named=True)
    assert (gap["length"], gap["reason"]) == (810, "host")


def test_gaps_add_up_to_the_idle_time() -> None:
    events = [step(10_000)]
    for i in range(7):
        events.append(kernel("k", 1000 * i + 13 * i * i, 400, i))
    device = device_of(make_trace(events))
    assert device.idle["time"].sum() == device.steps["idle"].sum()
    assert device.idle.filter(reason="end")["gaps"].to_list() == [1]


def test_launches_are_found_by_their_number() -> None:
    trace = make_trace(
        [launch(0, 5, 8), launch(6, 5, 3), kernel("a", 9, 5, 3), kernel("b", 20, 5, 4)]
    )
    found = launches(trace)
    assert [trace.begin[row] if row != NOTHING else None for row in found] == [None, None, 6, None]


def test_the_busiest_of_several_devices_is_taken() -> None:
    trace = make_trace([step(), kernel("a", 0, 100, 1), kernel("b", 0, 300, 2, "stream 9")])
    threads = tuple(
        type(thread)(thread.pid, thread.tid, thread.name, thread.is_device, number)
        for thread, number in zip(trace.threads, (None, 0, 1), strict=True)
    )
    moved = type(trace)(**{**trace.__dict__, "threads": threads})
    device = device_of(moved)
    assert (device.device, device.others) == (1, 1)
    assert device.steps["compute"].to_list() == [300]


def test_a_trace_of_the_host_has_no_device() -> None:
    trace = make_trace([step()])
    steps = find_steps(trace)
    assert device_time(trace, steps, host_time(trace, nest(trace), steps)) is None


@pytest.mark.parametrize("part", ["compute", "communication", "copies", "idle"])
def test_shares_are_of_the_wall(part: str) -> None:
    trace = make_trace([step(), kernel("a", 0, 400, 1), kernel("b", 600, 400, 2)])
    expected = {"compute": 0.8, "communication": 0, "copies": 0, "idle": 0.2}
    assert device_of(trace).kernels.share(part) == pytest.approx(expected[part])
