"""A typical step as bars: in the step, never over one another, bounded, nothing lost in merging."""

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import Event, make_trace, named, steps

from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.profile.trace.trace import Kind, Trace

US = 1000
STEP = named("ProfilerStep#1", 0, 100 * US)


def steps_of(*ranks: Trace, most: int = 5000) -> list[dict[str, Any]]:
    found = typical_steps([("x", RanksAttribution(ranks))], most=most)
    assert found is not None
    json.dumps(found, allow_nan=False)
    for rank in found["ranks"]:
        assert len(rank["bars"]) <= most
        apart(rank)
    of_ranks: list[dict[str, Any]] = found["ranks"]
    return of_ranks


def apart(rank: dict[str, Any]) -> None:
    """Bars of a lane and a depth follow one another, inside the step."""
    end: defaultdict[tuple[int, int], float] = defaultdict(lambda: rank["begin_ms"] - 1e-9)
    for bar in sorted(rank["bars"], key=lambda bar: bar["begin_ms"]):
        where = (bar["lane"], bar["depth"])
        assert bar["begin_ms"] >= end[where] - 1e-9
        end[where] = bar["begin_ms"] + bar["duration_ms"]
        assert end[where] <= rank["begin_ms"] + rank["step_ms"] + 1e-9
        assert bar["busy_ms"] <= bar["duration_ms"] + 1e-9


def test_the_timeline_shows_the_step_nearest_to_the_median_and_not_one_that_is_cut() -> None:
    # The first is cut; of the others 130 is one of the two in the middle, and 120 their median.
    ranges = steps([1000 * length for length in (900, 100, 130, 110, 180)])
    inside = [Event("aten::mm", step.begin, step.duration) for step in ranges]
    (rank,) = steps_of(make_trace([*ranges, *inside]))
    assert (rank["step"], rank["step_ms"]) in ((2, 0.13), (3, 0.11))
    assert {bar["name"] for bar in rank["bars"]} == {f"ProfilerStep#{rank['step']}", "aten::mm"}


def test_bars_have_their_place_their_depth_and_what_they_are_for() -> None:
    events = [
        *(STEP, named("phase.forward", 10 * US, 40 * US)),
        *(Event("aten::mm", 12 * US, 20 * US), Event("aten::late", 200 * US, 5 * US)),
        Event("gemm", 90 * US, 30 * US, Kind.kernel, "stream 7"),
        Event("Memcpy HtoD", 60 * US, 5 * US, Kind.copy, "stream 7"),
        Event("ncclKernel_AllReduce", 70 * US, 5 * US, Kind.kernel, "stream 8"),
    ]
    (rank,) = steps_of(make_trace(events))
    bars = {bar["name"]: bar for bar in rank["bars"]}
    assert "aten::late" not in bars
    categories = {"aten::mm": "forward", "gemm": "compute", "Memcpy HtoD": "copies"}
    for name, category in (categories | {"ncclKernel_AllReduce": "communication"}).items():
        assert bars[name]["category"] == category
    assert (bars["aten::mm"]["depth"], bars["aten::mm"]["begin_ms"]) == (2, pytest.approx(0.012))
    # What goes on after the step is cut where the step ends.
    assert bars["gemm"]["duration_ms"] == pytest.approx(0.010)
    lanes = rank["lanes"]
    assert lanes[bars["phase.forward"]["lane"]].endswith("which runs the steps")
    assert bars["phase.forward"]["lane"] == 0
    assert lanes[bars["gemm"]["lane"]] == "device 0, stream 7"


def test_ranks_are_on_one_clock() -> None:
    ranks = [
        make_trace(
            [named("ProfilerStep#4", 0, 100 * US - late), Event("aten::mm", 10 * US, 20 * US)],
            **{"rank": rank, "world_size": 2, "origin": 10**18 + late},
        )
        for rank, late in ((0, 0), (1, 40 * US))
    ]
    first, second = steps_of(*ranks)
    assert (first["name"], second["name"]) == ("rank 0", "rank 1")
    assert (first["begin_ms"], second["begin_ms"]) == (0.0, pytest.approx(0.04))
    found = next(bar for bar in second["bars"] if bar["name"] == "aten::mm")
    assert found["begin_ms"] == pytest.approx(0.05)


def test_python_calls_that_only_pass_on_are_left_out() -> None:
    calls = {"main": (0, 400_000), "outer": (60_000, 80_000), "wrapper": (60_500, 79_000)}
    calls |= {"half": (62_000, 40_000)}
    events = [Event(f"a.py(1): {name}", *when, Kind.python) for name, when in calls.items()]
    step = named("ProfilerStep#1", 50_000, 100_000)
    (rank,) = steps_of(make_trace([*events, step, Event("aten::mm", 63_000, 30_000)]))
    depth = {bar["name"].removeprefix("a.py(1): "): bar["depth"] for bar in rank["bars"]}
    assert depth == {"ProfilerStep#1": 0, "outer": 1, "half": 2, "aten::mm": 3}


spans = st.tuples(st.integers(0, 900), st.integers(1, 300), st.integers(1, 3))


@settings(max_examples=30, deadline=None)
@given(events=st.lists(spans, min_size=1, max_size=60), most=st.integers(8, 20))
def test_law_bars_are_apart_bounded_and_complete(
    events: list[tuple[int, int, int]],
    most: int,
) -> None:
    made = [Event(f"op{i}", b, n, thread=f"thread {t}") for i, (b, n, t) in enumerate(events)]
    trace = make_trace([named("ProfilerStep#1", 0, 1000, "thread 1"), *made])
    (rank,) = steps_of(trace, most=most)
    (every,) = steps_of(trace, most=10_000)
    # Where an event has no moment of its own left after cutting, there is nothing to draw.
    assert sum(bar["count"] for bar in every["bars"]) <= len(made) + 1
    if len(rank["bars"]) < most:
        for count in ("count", "busy_ms"):
            there, all_of_it = (sum(bar[count] for bar in x["bars"]) for x in (rank, every))
            assert there == pytest.approx(all_of_it)
