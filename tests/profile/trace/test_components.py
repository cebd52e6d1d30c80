"""The forward by named range."""

from __future__ import annotations

import polars as pl
import pytest
from made import Event, make_trace

from deltacell.profile.trace.components import components
from deltacell.profile.trace.device import launches
from deltacell.profile.trace.host import host_time
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import Kind, Trace


def of(trace: Trace) -> pl.DataFrame:
    steps, nesting = find_steps(trace), nest(trace)
    return components(trace, nesting, steps, host_time(trace, nesting, steps), launches(trace))


BASE = [
    Event("ProfilerStep#1", 0, 1000, Kind.annotation),
    Event("phase.forward", 0, 600, Kind.annotation),
]


def test_components_have_their_own_time_and_that_of_those_inside() -> None:
    trace = make_trace(
        [
            *BASE,
            Event("net.encoder", 10, 300, Kind.annotation),
            Event("net.encoder.a", 20, 100, Kind.annotation),
            Event("aten::mm", 30, 50),
            Event("cudaLaunchKernel", 40, 5, Kind.runtime, correlation=1),
            Event("gemm", 50, 500, Kind.kernel, "stream 7", 1),
            Event("net.head", 400, 100, Kind.annotation),
            Event("phase.loss", 700, 100, Kind.annotation),
            Event("net.elsewhere", 710, 50, Kind.annotation),
        ]
    )
    rows = {row["component"]: row for row in of(trace).iter_rows(named=True)}
    assert set(rows) == {"net.encoder", "net.encoder > net.encoder.a", "net.head"}
    assert rows["net.encoder"]["time"] == 300
    assert rows["net.encoder"]["self_time"] == 200
    assert rows["net.encoder"]["share"] == pytest.approx(0.5)
    inner = rows["net.encoder > net.encoder.a"]
    assert (inner["time"], inner["self_time"], inner["device_time"]) == (100, 100, 500)
    assert (inner["depth"], inner["count"]) == (1, 1)


def test_modules_stand_in_for_ranges() -> None:
    trace = make_trace(
        [
            *BASE,
            Event("nn.Module: Net_0", 10, 500, Kind.python),
            Event("nn.Module: Linear_0", 20, 100, Kind.python),
        ]
    )
    rows = {row["component"]: row["time"] for row in of(trace).iter_rows(named=True)}
    assert rows == {"nn.Module: Net_0": 500, "nn.Module: Net_0 > nn.Module: Linear_0": 100}


def test_without_names_there_are_no_components() -> None:
    assert len(of(make_trace([*BASE, Event("aten::mm", 10, 20)]))) == 0
