"""What is read and told a part at a time is the same as at once."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from made import Event, make_trace
from polars.testing import assert_frame_equal

from deltacell.profile.trace import columns, self_time
from deltacell.profile.trace.attribution import attribute
from deltacell.profile.trace.read import read_trace
from deltacell.profile.trace.self_time import Covered
from deltacell.profile.trace.trace import Kind, Trace


def program() -> Trace:
    """Three steps with a backward on a thread of its own, a device, and events that overlap."""
    events = []
    for step in range(3):
        at = 1000 * step
        events += [
            Event(f"ProfilerStep#{step}", at, 990, Kind.annotation),
            Event("enumerate(DataLoader)#x", at + 5, 100, Kind.annotation),
            Event("aten::linear", at + 110, 100, sequence=step),
            Event("aten::addmm", at + 115, 60),
            Event("cudaLaunchKernel", at + 120, 10, Kind.runtime, correlation=3 * step),
            Event("aten::relu", at + 215, 40),
            Event("begins in relu", at + 240, 20),
            Event("cudaMemcpyAsync", at + 300, 9, Kind.runtime, correlation=3 * step + 1),
            Event("AddmmBackward0", at + 320, 200, thread="backward", sequence=step),
            Event("aten::mm", at + 330, 50, thread="backward"),
            Event("Optimizer.step#Adam", at + 600, 150, Kind.annotation),
            Event("aten::add_", at + 610, 30),
            Event("cudaStreamSynchronize", at + 800, 90, Kind.runtime),
            Event("gemm", at + 140, 300, Kind.kernel, "stream 7", 3 * step),
            Event("Memcpy HtoD", at + 460, 90, Kind.copy, "stream 7", 3 * step + 1),
        ]
    return make_trace(events)


def same(one: Any, other: Any, where: str = "") -> None:
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, err_msg=where)
    elif isinstance(one, pl.DataFrame):
        assert_frame_equal(one, other)
    elif is_dataclass(one):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    else:
        assert one == other, where


@pytest.mark.parametrize("size", [1, 2, 7])
def test_attribution_in_parts_is_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = attribute(program())
    paths = at_once.doing
    monkeypatch.setattr(self_time, "_PART", size)
    in_parts = attribute(program())
    same(at_once, in_parts)
    assert_frame_equal(paths, in_parts.doing)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_columns_in_blocks_are_the_same(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"n{i % 5}", "pid": i % 2, "tid": i % 3}
        | {"ts": (7 * i) % 64, "dur": 2, "args": {"External id": i, "Sequence number": i % 9}}
        for i in range(64)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    at_once = read_trace(path)
    assert at_once.begin.tolist() == [1000 * i for i in range(64)]
    monkeypatch.setattr(columns, "_BLOCK", size)
    same(at_once, read_trace(path))


def test_an_operation_counts_events_and_not_their_pieces() -> None:
    found = attribute(program()).operations
    count = dict(zip(found["operation"], found["count"], strict=True))
    # One step is cut because the profiler starts in it; two are left.
    assert count["aten::linear"] == 2
    assert count["aten::relu"] == 2
    assert count["Optimizer.step#Adam"] == 2
    assert found["time"].sum() == 2 * 990


def test_pieces_of_the_host_are_joined_where_they_touch() -> None:
    host = attribute(program()).host
    for seed in range(20):
        which = np.random.default_rng(seed).random(len(host.begin)) < 0.6
        same(host.covered(which), Covered.of(host.begin[which], host.end[which]))


def test_parent_and_within_differ_only_where_events_are_cut() -> None:
    trace = program()
    nesting = self_time.nest(trace)
    differ = np.flatnonzero(nesting.parent != nesting.within)
    assert [trace.text(row) for row in differ] == ["begins in relu"] * 3
    nested = self_time.nest(make_trace([Event("a", 0, 10), Event("b", 2, 3)]))
    np.testing.assert_array_equal(nested.parent, nested.within)
