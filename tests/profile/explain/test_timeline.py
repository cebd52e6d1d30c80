"""A typical step as bars: in the step, never over one another, bounded, nothing lost in merging."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.trace.attribution import attribute_ranks
from deltacell.profile.trace.read import read_trace


def event(name: str, begin: float, length: float, cat: str = "cpu_op", **more: Any) -> Any:
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": begin, "dur": length} | {
        "cat": cat,
        **more,
    }


def step(number: int, begin: float, length: float) -> Any:
    return event(f"ProfilerStep#{number}", begin, length, "user_annotation")


def on_device(name: str, begin: float, length: float, stream: int = 7, cat: str = "kernel") -> Any:
    place = {"pid": 0, "tid": stream, "args": {"stream": stream, "device": 0}}
    return event(name, begin, length, cat, **place)


def write_trace(path: Path, events: list[Any], **about: Any) -> Path:
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def steps_of(*paths: Path, most: int = 5000) -> list[dict[str, Any]]:
    found = typical_steps([("x", attribute_ranks([read_trace(path) for path in paths]))], most=most)
    assert found is not None
    json.dumps(found, allow_nan=False)
    for rank in found["ranks"]:
        assert len(rank["bars"]) <= most
        apart(rank)
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
    events = []
    for i, length in enumerate(lengths):
        begin = sum(lengths[:i])
        events += [step(i, begin, length), event("aten::mm", begin, length)]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    # The first is cut; of the others 130 is one of the two in the middle, and 120 their median.
    assert (rank["step"], rank["step_ms"]) in ((2, 0.13), (3, 0.11))
    assert [bar["name"] for bar in rank["bars"]] == [f"ProfilerStep#{rank['step']}", "aten::mm"]


def test_bars_have_their_place_their_depth_and_what_they_are_for(tmp_path: Path) -> None:
    events = [
        *(step(1, 0, 100), event("phase.forward", 10, 40, "user_annotation")),
        *(event("aten::mm", 12, 20), event("aten::late", 200, 5)),
        *(on_device("gemm", 90, 30), on_device("Memcpy HtoD", 60, 5, cat="gpu_memcpy")),
        on_device("ncclKernel_AllReduce", 70, 5, stream=8),
    ]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    bars = {bar["name"]: bar for bar in rank["bars"]}
    assert "aten::late" not in bars
    categories = {"aten::mm": "forward", "gemm": "compute", "Memcpy HtoD": "copies"}
    for name, category in (categories | {"ncclKernel_AllReduce": "communication"}).items():
        assert bars[name]["category"] == category
    assert (bars["aten::mm"]["depth"], bars["aten::mm"]["begin_ms"]) == (2, pytest.approx(0.012))
    # What goes on after the step is cut where the step ends.
    assert bars["gemm"]["duration_ms"] == pytest.approx(0.010)
    lanes = rank["lanes"]
    assert lanes[bars["phase.forward"]["lane"]].endswith("where the steps are")
    assert bars["phase.forward"]["lane"] == 0
    assert lanes[bars["gemm"]["lane"]] == "device 0, stream 7"


def test_ranks_are_on_one_clock(tmp_path: Path) -> None:
    paths = []
    for rank, late in ((0, 0), (1, 40)):
        events = [step(4, 0, 100 - late), event("aten::mm", 10, 20)]
        about = {"distributedInfo": {"rank": rank, "world_size": 2}}
        about["baseTimeNanoseconds"] = 10**18 + 1000 * late
        paths.append(write_trace(tmp_path / f"rank{rank}.json", events, **about))
    first, second = steps_of(*paths)
    assert (first["name"], second["name"]) == ("rank 0", "rank 1")
    assert (first["begin_ms"], second["begin_ms"]) == (0.0, pytest.approx(0.04))
    found = next(bar for bar in second["bars"] if bar["name"] == "aten::mm")
    assert found["begin_ms"] == pytest.approx(0.05)


def test_python_calls_that_only_pass_on_are_left_out(tmp_path: Path) -> None:
    python = "python_function"
    events = [
        *(event("main.py(1): main", 0, 400, python), step(1, 50, 100)),
        event("a.py(1): outer", 60, 80, python, args={"Python id": 1}),
        event("a.py(2): wrapper", 60.5, 79, python, args={"Python id": 2}),
        event("a.py(3): half", 62, 40, python, args={"Python id": 3}),
        event("aten::mm", 63, 30),
    ]
    (rank,) = steps_of(write_trace(tmp_path / "a.json", events))
    depth = {bar["name"]: bar["depth"] for bar in rank["bars"]}
    assert depth == {"ProfilerStep#1": 0, "a.py(1): outer": 1, "a.py(3): half": 2, "aten::mm": 3}


spans = st.tuples(st.integers(0, 900), st.integers(1, 300), st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(events=st.lists(spans, min_size=1, max_size=60), most=st.integers(8, 80))
def test_law_bars_are_apart_bounded_and_complete(
    events: list[tuple[int, int, int]], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("law") / "a.json"
    made = [event(f"op{i}", b, n, tid=t) for i, (b, n, t) in enumerate(events)]
    (rank,) = steps_of(write_trace(path, [step(1, 0, 1000), *made]), most=most)
    (every,) = steps_of(path, most=10_000)
    # Where an event has no moment of its own left after cutting, there is nothing to draw.
    assert sum(bar["count"] for bar in every["bars"]) <= len(made) + 1
    if len(rank["bars"]) < most:
        for count in ("count", "busy_ms"):
            there, all_of_it = (sum(bar[count] for bar in x["bars"]) for x in (rank, every))
            assert there == pytest.approx(all_of_it)
