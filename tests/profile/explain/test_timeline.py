"""A typical step as bars: in the step, never over one another, bounded, nothing lost in merging."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.explain import explain
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.trace.attribution import attribute_ranks
from deltacell.profile.trace.read import read_trace

MAIN = {"ph": "X", "pid": 1, "tid": 1}


def write_trace(path: Path, events: list[dict[str, Any]], **about: Any) -> Path:
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def step(number: int, begin: float, length: float) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {**MAIN, "cat": "user_annotation", "name": name, "ts": begin, "dur": length}


def operator(name: str, begin: float, length: float, **more: Any) -> dict[str, Any]:
    return {**MAIN, "cat": "cpu_op", "name": name, "ts": begin, "dur": length, **more}


def steps_of(*paths: Path, most: int = 5000) -> list[dict[str, Any]]:
    found = typical_steps([("x", attribute_ranks([read_trace(path) for path in paths]))], most=most)
    assert found is not None
    json.dumps(found, allow_nan=False)
    ranks: list[dict[str, Any]] = found["ranks"]
    return ranks


def apart(rank: dict[str, Any]) -> None:
    """Bars of a lane and a depth follow one another, inside the step."""
    end: defaultdict[tuple[int, int], float] = defaultdict(lambda: rank["begin_ms"] - 1e-9)
    for bar in sorted(rank["bars"], key=lambda bar: bar["begin_ms"]):
        where = (bar["lane"], bar["depth"])
        assert bar["begin_ms"] >= end[where] - 1e-9
        end[where] = bar["begin_ms"] + bar["duration_ms"]
        assert end[where] <= rank["begin_ms"] + rank["step_ms"] + 1e-9
        assert bar["busy_ms"] <= bar["duration_ms"] + 1e-9


def test_it_is_the_step_nearest_to_the_median_and_not_one_that_is_cut(tmp_path: Path) -> None:
    lengths = [900, 100, 130, 110, 180]
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    events = [step(i, b, n) for i, (b, n) in enumerate(zip(begins, lengths, strict=True))]
    events += [
        operator("aten::mm", begin, length) for begin, length in zip(begins, lengths, strict=True)
    ]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    # The first is cut; of the others 130 is one of the two in the middle, and 120 their median.
    assert rank["step"] in (2, 3)
    assert rank["step_ms"] in (0.13, 0.11)
    assert [bar["name"] for bar in rank["bars"]] == [f"ProfilerStep#{rank['step']}", "aten::mm"]


def test_bars_have_their_place_their_depth_and_what_they_are_for(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        {**MAIN, "cat": "user_annotation", "name": "phase.forward", "ts": 10, "dur": 40},
        operator("aten::mm", 12, 20),
        {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": 90, "dur": 30}
        | {"args": {"stream": 7, "device": 0}},
        {"ph": "X", "pid": 0, "tid": 7, "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 60}
        | {"dur": 5, "args": {"stream": 7, "device": 0}},
        {"ph": "X", "pid": 0, "tid": 8, "cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 70}
        | {"dur": 5, "args": {"stream": 8, "device": 0}},
        operator("aten::late", 200, 5),
    ]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    apart(rank)
    bars = {bar["name"]: bar for bar in rank["bars"]}
    assert "aten::late" not in bars
    assert (bars["aten::mm"]["depth"], bars["aten::mm"]["category"]) == (2, "forward")
    assert bars["aten::mm"]["begin_ms"] == pytest.approx(0.012)
    assert bars["gemm"]["category"] == "compute"
    # What goes on after the step is cut where the step ends.
    assert bars["gemm"]["duration_ms"] == pytest.approx(0.010)
    assert bars["Memcpy HtoD"]["category"] == "copies"
    assert bars["ncclKernel_AllReduce"]["category"] == "communication"
    lanes = rank["lanes"]
    assert lanes[bars["phase.forward"]["lane"]].endswith("where the steps are")
    assert bars["phase.forward"]["lane"] == 0
    assert lanes[bars["gemm"]["lane"]] == "device 0, stream 7"


def test_ranks_are_on_one_clock(tmp_path: Path) -> None:
    paths = []
    for rank, late in ((0, 0), (1, 40)):
        events = [step(4, 0, 100 - late), operator("aten::mm", 10, 20)]
        paths.append(
            write_trace(
                tmp_path / f"rank{rank}.json",
                events,
                distributedInfo={"rank": rank, "world_size": 2},
                baseTimeNanoseconds=10**18 + 1000 * late,
            )
        )
    first, second = steps_of(*paths)
    assert (first["name"], second["name"]) == ("rank 0", "rank 1")
    assert (first["begin_ms"], second["begin_ms"]) == (0.0, pytest.approx(0.04))
    apart(second)
    found = next(bar for bar in second["bars"] if bar["name"] == "aten::mm")
    assert found["begin_ms"] == pytest.approx(0.05)


def test_python_calls_that_only_pass_on_are_left_out(tmp_path: Path) -> None:
    def call(name: str, begin: float, length: float, number: int) -> dict[str, Any]:
        python = {"cat": "python_function", "args": {"Python id": number}}
        return {**MAIN, **python, "name": name, "ts": begin, "dur": length}

    events = [
        {**MAIN, "cat": "python_function", "name": "main.py(1): main", "ts": 0, "dur": 400},
        step(1, 50, 100),
        call("a.py(1): outer", 60, 80, 1),
        call("a.py(2): wrapper", 60.5, 79, 2),
        call("a.py(3): half", 62, 40, 3),
        operator("aten::mm", 63, 30),
    ]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    depth = {bar["name"]: bar["depth"] for bar in rank["bars"]}
    assert depth == {"ProfilerStep#1": 0, "a.py(1): outer": 1, "a.py(3): half": 2, "aten::mm": 3}


def test_many_events_become_few_bars_and_no_time_is_lost(tmp_path: Path) -> None:
    events = [step(1, 0, 100_000)]
    events += [operator(f"aten::op{i % 7}", 10 + 9 * i, 4 + i % 4) for i in range(9000)]
    events += [operator("aten::long", 90_000, 5000)]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events), most=300)
    apart(rank)
    assert rank["events"] == 9002
    assert len(rank["bars"]) <= 300
    assert sum(bar["count"] for bar in rank["bars"]) == 9002
    inner = [bar for bar in rank["bars"] if bar["depth"] == 1]
    assert sum(bar["busy_ms"] for bar in inner) == pytest.approx(
        (sum(4 + i % 4 for i in range(9000)) + 5000) / 1e3
    )
    assert "aten::long" in {bar["name"] for bar in inner}
    assert any("short events, the longest aten::op" in bar["name"] for bar in inner)


def test_a_budget_below_one_bar_a_lane_is_kept_too(tmp_path: Path) -> None:
    events = [step(1, 0, 100), *(operator(f"f{i}", i, 90 - 2 * i) for i in range(1, 20))]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events), most=4)
    assert len(rank["bars"]) == 4
    assert rank["bars"][0]["name"] == "ProfilerStep#1"


def test_nothing_to_draw() -> None:
    assert typical_steps([]) is None


def test_an_explanation_of_traces_has_it_and_names_both(tmp_path: Path) -> None:
    paths = [
        write_trace(tmp_path / f"{name}.json", [step(1, 0, 100), operator("aten::mm", 10, 20)])
        for name in ("before", "after")
    ]
    assert [rank["name"] for rank in explain(paths[0]).to_json()["timeline"]["ranks"]] == [
        "The program"
    ]
    assert [rank["name"] for rank in explain(*paths).to_json()["timeline"]["ranks"]] == [
        "before",
        "after",
    ]


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 300), st.integers(1, 3)),
        min_size=1,
        max_size=60,
    ),
    most=st.integers(8, 80),
)
def test_law_bars_are_apart_bounded_and_complete(
    events: list[tuple[int, int, int]], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("law") / "a.json"
    made = [step(1, 0, 1000)]
    made += [operator(f"op{i}", b, n, tid=t) for i, (b, n, t) in enumerate(events)]
    (rank,) = steps_of(write_trace(path, made), most=most)
    apart(rank)
    assert len(rank["bars"]) <= most
    (every,) = steps_of(path, most=10_000)
    apart(every)
    # Where an event has no moment of its own left after cutting, there is nothing to draw.
    assert sum(bar["count"] for bar in every["bars"]) <= len(made)
    if len(rank["bars"]) < most:
        for count in ("count", "busy_ms"):
            assert sum(bar[count] for bar in rank["bars"]) == pytest.approx(
                sum(bar[count] for bar in every["bars"])
            )
