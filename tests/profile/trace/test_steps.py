"""Steps: found in several ways, and the first ones cut by rule."""

from __future__ import annotations

import pytest
from made import Event, make_trace

from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import Kind


def ranges(name: str, lengths: list[int], pause: int = 0, first: int = 0) -> list[Event]:
    events, at = [], 0
    for place, length in enumerate(lengths):
        label = name.replace("*", str(first + place))
        events.append(Event(label, at, length, Kind.annotation))
        at += length + pause
    return events


def test_profiler_steps_are_taken_as_they_are() -> None:
    steps = find_steps(make_trace(ranges("ProfilerStep#*", [100, 90, 80], pause=5, first=7)))
    assert steps.how == "ProfilerStep"
    assert steps.number.tolist() == [7, 8, 9]
    assert steps.wall.tolist() == [100, 90, 80]
    assert steps.counted.tolist() == [False, True, True]
    assert [(cut.number, cut.why) for cut in steps.cut] == [(7, "the profiler starts in it")]


def test_a_long_beginning_is_warm_up() -> None:
    steps = find_steps(make_trace(ranges("ProfilerStep#*", [9000, 300, 100, 100, 100, 500])))
    assert steps.counted.tolist() == [False, False, True, True, True, True]
    assert all("warm-up" in cut.why for cut in steps.cut)


@pytest.mark.parametrize("length", [1, 10**9])
def test_the_only_step_is_never_cut(length: int) -> None:
    steps = find_steps(make_trace(ranges("ProfilerStep#*", [length])))
    assert steps.counted.tolist() == [True]
    assert steps.cut == ()


def test_of_steps_that_only_get_shorter_half_is_left() -> None:
    steps = find_steps(make_trace(ranges("ProfilerStep#*", [1000, 100, 10, 1])))
    assert steps.counted.tolist() == [False, False, True, True]


def test_profiler_steps_that_overlap_are_not_counted_twice() -> None:
    events = [
        Event("ProfilerStep#1", 0, 120, Kind.annotation),
        Event("ProfilerStep#2", 100, 50, Kind.annotation),
    ]
    assert find_steps(make_trace(events)).wall.tolist() == [100, 50]


def test_ranges_named_as_steps_reach_to_the_next_because_the_loader_is_between() -> None:
    steps = find_steps(make_trace(ranges("train_step *", [50, 50, 50], pause=30)))
    assert steps.begin.tolist() == [0, 80, 160]
    assert steps.wall.tolist() == [80, 80, 50]


def test_steps_end_with_the_last_optimizer_of_a_round() -> None:
    events = [Event("aten::add", 0, 5)]
    for place in range(3):
        events.append(Event("Optimizer.step#SGD.step", 100 * place + 50, 10, Kind.annotation))
        events.append(Event("Optimizer.step#Adam.step", 100 * place + 70, 10, Kind.annotation))
    steps = find_steps(make_trace(events))
    assert steps.begin.tolist() == [0, 80, 180]
    assert steps.end.tolist() == [80, 180, 280]
    assert "Optimizer.step#Adam.step" in steps.how


def test_without_anything_that_repeats_the_whole_is_one_step() -> None:
    steps = find_steps(make_trace([Event("a", 10, 90), Event("b", 50, 100, thread="second")]))
    assert steps.begin.tolist() == [0 + 10]
    assert steps.end.tolist() == [150]
    assert steps.counted.all()


def test_the_thread_is_the_one_that_the_steps_are_on() -> None:
    events = ranges("ProfilerStep#*", [10, 10])
    trace = make_trace([*events, Event("busy", 0, 10**6, thread="a worker")])
    assert trace.threads[find_steps(trace).thread].tid == "main"


def test_a_number_too_large_for_a_column_is_no_trouble() -> None:
    name = "ProfilerStep#" + "9" * 50
    assert len(find_steps(make_trace([Event(name, 0, 10, Kind.annotation)]))) == 1


def filled(lengths: list[int], counts: list[int]) -> list[Event]:
    """Steps with so many operators each."""
    events, at = [], 0
    for place, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        events.append(Event(f"ProfilerStep#{place}", at, length, Kind.annotation))
        events += [Event("aten::add", at + i, 1) for i in range(count)]
        at += length
    return events


def test_a_last_step_that_the_profiler_stopped_in_is_no_step() -> None:
    # Without this rule the only whole step would seem a warm-up of the rest.
    steps = find_steps(make_trace(filled([30_000, 40], [900, 3])))
    assert steps.counted.tolist() == [True, False]
    assert [cut.number for cut in steps.cut] == [1]
    assert "incomplete" in steps.cut[0].why


def test_a_short_last_step_with_all_its_work_counts() -> None:
    steps = find_steps(make_trace(filled([3000, 3000, 3000, 1000], [100, 100, 100, 100])))
    assert steps.counted.tolist() == [False, True, True, True]


def test_both_ends_are_cut() -> None:
    steps = find_steps(make_trace(filled([9000, 3000, 3000, 40], [100, 100, 100, 1])))
    assert steps.counted.tolist() == [False, True, True, False]
    assert [cut.number for cut in steps.cut] == [0, 3]
