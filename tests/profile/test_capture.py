"""The capture: traces that can be read, one a window and rank, and no harm to the training."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import polars as pl
import pytest
import torch

from deltacell.profile.capture import Capture, Window
from deltacell.profile.phase_rows import read_phases
from deltacell.profile.phases import NoTimer, PhaseTimer


def train(capture: Capture, timer: PhaseTimer | NoTimer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        timer.switch("forward")
        weight = torch.ones(3, requires_grad=True)
        loss = (weight * 2).sum()
        timer.switch("backward")
        loss.backward()
        timer.switch("other")
        timer.end_step(0, step, 1)
        capture.step()


def run(window: Window, folder, steps: int, rank: int = 0, **options) -> Capture:
    timer = PhaseTimer()
    capture = Capture(window, folder, rank, timer=timer, **options)
    capture.start()
    train(capture, timer, steps)
    capture.stop()
    return capture


def events_of(file) -> list[dict]:
    with gzip.open(file, "rt") as trace:
        return json.load(trace)["traceEvents"]


def names_of(file, prefix: str) -> list[str]:
    ranges = [event for event in events_of(file) if event.get("cat") == "user_annotation"]
    ranges.sort(key=lambda event: event["ts"])
    return [event["name"] for event in ranges if event["name"].startswith(prefix)]


def files_of(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(autouse=True)
def _no_profiler_is_left_on():
    yield
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_trace_holds_the_window_and_its_phases(tmp_path):
    capture = run(Window(2, 1, 2, 1), tmp_path / "traces", 9, rank=3)
    assert files_of(tmp_path / "traces") == ["trace-rank3-window0.json.gz"]
    assert capture.files == [tmp_path / "traces" / "trace-rank3-window0.json.gz"]
    assert capture.notices == []
    assert names_of(capture.files[0], "ProfilerStep#") == ["ProfilerStep#3", "ProfilerStep#4"]
    a_step = ["phase.forward", "phase.backward", "phase.other"]
    assert names_of(capture.files[0], "phase.") == a_step * 2
    assert any(event["name"] == "aten::mul" for event in events_of(capture.files[0]))


@pytest.mark.parametrize("told", [True, False])
def test_phases_lie_within_their_step(tmp_path, told):
    timer = PhaseTimer()
    with Capture(Window(1, 0, 3, 1), tmp_path, timer=timer if told else None) as capture:
        train(capture, timer, 5)
    ranges = [e for e in events_of(capture.files[0]) if e.get("cat") == "user_annotation"]
    steps = [e for e in ranges if e["name"].startswith("ProfilerStep#")]
    for phase in (e for e in ranges if e["name"].startswith("phase.")):
        within = [
            step
            for step in steps
            if step["ts"] <= phase["ts"]
            and phase["ts"] + phase["dur"] <= step["ts"] + step["dur"] + 1e-3
        ]
        assert len(within) == 1, phase


def test_each_window_has_a_file_of_its_own(tmp_path):
    capture = run(Window(1, 1, 2, 3), tmp_path, 20)
    assert [file.name for file in capture.files] == [
        f"trace-rank0-window{number}.json.gz" for number in range(3)
    ]
    steps = [names_of(file, "ProfilerStep#") for file in capture.files]
    assert steps == [[f"ProfilerStep#{n}", f"ProfilerStep#{n + 1}"] for n in (2, 6, 10)]
    assert capture.remaining == 0


def test_windows_without_a_wait_or_a_warmup_follow_at_once(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture = run(Window(0, 0, 1, 3), tmp_path, 5)
    steps = [names_of(file, "ProfilerStep#") for file in capture.files]
    assert steps == [["ProfilerStep#0"], ["ProfilerStep#1"], ["ProfilerStep#2"]]


def test_without_an_end_it_records_as_long_as_the_training_lasts(tmp_path):
    capture = run(Window(0, 1, 1, 0), tmp_path, 7)
    assert len(capture.files) == 3
    assert capture.remaining is None


def test_each_rank_writes_its_own(tmp_path):
    for rank in (0, 1):
        run(Window(0, 0, 1, 1), tmp_path, 2, rank=rank)
    assert files_of(tmp_path) == [f"trace-rank{rank}-window0.json.gz" for rank in (0, 1)]


@pytest.mark.parametrize("steps", range(8))
def test_a_training_may_end_anywhere(tmp_path, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture = run(Window(2, 2, 3, 1), tmp_path, steps)
        capture.stop()
        capture.step()
    assert len(files_of(tmp_path)) == (steps >= 7)
    assert len(capture.notices) == (steps < 7)
    if steps < 2:
        assert f"ended at step {steps}, and the window begins after step 2" in capture.notices[0]
    elif steps < 7:
        assert f"ended after {steps - 2} of the 5 steps of window 0" in capture.notices[0]


def test_an_error_in_the_middle_goes_through_and_leaves_nothing_broken(tmp_path):
    timer = PhaseTimer()
    capture = Capture(Window(0, 0, 5, 1), tmp_path)

    def fail() -> None:
        with capture:
            train(capture, timer, 2)
            timer.switch("forward")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not capture.recording
    assert files_of(tmp_path) == []
    # Its range outlived the profiler, and the timer goes on.
    train(capture, timer, 2)
    # And so can another capture.
    assert len(run(Window(0, 0, 1, 1), tmp_path, 2).files) == 1


def test_starting_twice_and_stopping_before_the_start_do_nothing(tmp_path):
    capture = Capture(Window(0, 0, 2, 1), tmp_path)
    capture.stop()
    capture.step()
    assert capture.notices == []
    capture.start()
    train(capture, NoTimer(), 1)
    capture.start()
    train(capture, NoTimer(), 1)
    capture.stop()
    assert files_of(tmp_path) == ["trace-rank0-window0.json.gz"]


def test_after_a_restart_it_goes_on_with_the_windows_that_are_missing(tmp_path):
    first = Capture(Window(1, 0, 2, 2), tmp_path)
    assert first.remaining == 2
    first.start()
    train(first, NoTimer(), 5)
    first.stop()
    assert len(first.files) == 1

    again = Capture(Window(1, 0, 2, 2), tmp_path)
    assert again.remaining == 1
    again.start(step=100)
    train(again, NoTimer(), 9, first=100)
    again.stop()
    assert files_of(tmp_path) == [f"trace-rank0-window{number}.json.gz" for number in (0, 1)]
    assert names_of(again.files[0], "ProfilerStep#") == ["ProfilerStep#101", "ProfilerStep#102"]

    done = run(Window(1, 0, 2, 2), tmp_path, 9)
    assert (done.files, done.notices, done.remaining) == ([], [], 0)


def test_a_window_that_not_all_ranks_have_is_recorded_again(tmp_path):
    run(Window(0, 0, 1, 1), tmp_path, 2, rank=0, world_size=2)
    assert Capture(Window(0, 0, 1, 1), tmp_path, 0, world_size=2).remaining == 1
    run(Window(0, 0, 1, 1), tmp_path, 2, rank=1, world_size=2)
    assert Capture(Window(0, 0, 1, 1), tmp_path, 0, world_size=2).remaining == 0


def test_another_profiler_is_left_alone(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
        capture = run(Window(1, 0, 1, 1), tmp_path, 4)
        assert torch.autograd.profiler._is_profiler_enabled
    assert "another of torch's profilers" in capture.notices[0]
    assert len(capture.notices) == 1
    assert any(event.key == "aten::mul" for event in other.key_averages())


def test_a_trace_that_cannot_be_written_is_a_notice(tmp_path):
    (tmp_path / "traces").write_text("a file in the way")
    capture = run(Window(0, 0, 1, 2), tmp_path / "traces", 5)
    assert capture.files == []
    assert len(capture.notices) == 1
    assert "could not be written" in capture.notices[0]


def test_a_trace_that_torch_leaves_unfinished_is_not_kept(tmp_path, monkeypatch):
    def half(profiler, path):
        Path(path).write_text('{"traceEvents": [{"name": "aten::m')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", half)
    capture = run(Window(0, 0, 1, 1), tmp_path, 3)
    assert "unfinished" in capture.notices[0]
    assert files_of(tmp_path) == []


def test_the_timer_knows_in_which_rows_the_profiler_was_on(tmp_path):
    timer = PhaseTimer()
    capture = Capture(Window(2, 1, 1, 1), tmp_path / "traces", timer=timer)
    capture.start()
    train(capture, timer, 7)
    capture.stop()
    timer.flush(tmp_path, 0, 0)
    rows = read_phases(tmp_path)
    # Warm-up, the recorded step, and the row in which the trace is written.
    assert rows.filter(pl.col("profiled"))["step"].to_list() == [2, 3, 4]


def test_shapes_stacks_and_memory_are_recorded_when_asked_for(tmp_path):
    capture = run(
        Window(0, 0, 1, 1), tmp_path, 2, record_shapes=True, profile_memory=True, with_stack=True
    )
    events = events_of(capture.files[0])
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert any(event["name"] == "[memory]" for event in events)
    assert any(event.get("cat") == "python_function" for event in events)
