"""The window and its arithmetic; the capture: readable traces, and no harm to the training."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.capture import Capture, Window, check_window
from deltacell.profile.phase_rows import read_phases
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.trace.read import read_trace


def run(window: Window, folder, steps: int, first: int = 0, **options) -> Capture:
    """Train for some steps of which a window is recorded."""
    timer = PhaseTimer()
    capture = Capture(window, folder, timer=timer, **options)
    capture.start(first)
    for step in range(first, first + steps):
        timer.switch("forward")
        loss = (torch.ones(3, requires_grad=True) * 2).sum()
        timer.switch("backward")
        loss.backward()
        timer.switch("other")
        timer.end_step(0, step, 1)
        capture.step()
    capture.stop()
    return capture


def events_of(file) -> list[dict]:
    with gzip.open(file, "rt") as trace:
        return json.load(trace)["traceEvents"]


def ranges_of(file, prefix: str) -> list[dict]:
    ranges = [event for event in events_of(file) if event.get("cat") == "user_annotation"]
    ranges.sort(key=lambda event: event["ts"])
    return [event for event in ranges if event["name"].startswith(prefix)]


def steps_of(capture: Capture) -> list[list[int]]:
    """Return the numbers of the steps in each file."""
    steps = [ranges_of(file, "ProfilerStep#") for file in capture.files]
    return [[int(step["name"].rpartition("#")[2]) for step in file] for file in steps]


def files_of(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(autouse=True)
def _no_profiler_is_left_on():
    yield
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_trace_holds_the_window_and_its_phases(tmp_path):
    capture = run(Window(2, 1, 2, 1), tmp_path / "traces", 9, rank=3)
    assert capture.files == [tmp_path / "traces" / "trace-rank3-window0.json.gz"]
    assert files_of(tmp_path / "traces") == [capture.files[0].name]
    assert capture.notices == []
    steps, phases = (ranges_of(capture.files[0], x) for x in ("ProfilerStep#", "phase."))
    assert steps_of(capture) == [[3, 4]]
    a_step = ["phase.forward", "phase.backward", "phase.other"]
    assert [phase["name"] for phase in phases] == a_step * 2
    # Each phase lies within its step.
    for number, phase in enumerate(phases):
        step = steps[number // 3]
        assert step["ts"] <= phase["ts"]
        assert phase["ts"] + phase["dur"] <= step["ts"] + step["dur"] + 1e-3
    assert any(event["name"] == "aten::mul" for event in events_of(capture.files[0]))
    capture.timer.flush(tmp_path, 0, 0)
    # The timer knows where it was on: warm-up, two steps, and the row that writes the trace.
    assert read_phases(tmp_path).filter("profiled")["step"].to_list() == [2, 3, 4, 5]


def test_each_window_has_a_file_of_its_own(tmp_path):
    capture = run(Window(1, 1, 2, 3), tmp_path, 20)
    assert [file.name for file in capture.files] == [
        f"trace-rank0-window{number}.json.gz" for number in range(3)
    ]
    assert steps_of(capture) == [[2, 3], [6, 7], [10, 11]]
    # Without an end it records as long as the training lasts.
    assert len(run(Window(0, 1, 1, 0), tmp_path / "more", 7).files) == 3


@pytest.mark.parametrize("steps", range(8))
def test_a_training_may_end_anywhere(tmp_path, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture = run(Window(2, 2, 3, 1), tmp_path, steps)
        capture.stop()
        capture.step()
    assert len(files_of(tmp_path)) == (steps >= 7)
    assert len(capture.notices) == (steps < 7)
    if steps < 7:
        reached = f"at step {steps}" if steps < 2 else f"after {steps - 2} of the 5 steps"
        assert f"ended {reached}" in capture.notices[0]


def test_after_a_restart_it_goes_on_with_the_windows_that_are_missing(tmp_path):
    window = Window(1, 0, 2, 2)
    assert len(run(window, tmp_path, 5).files) == 1
    again = run(window, tmp_path, 9, first=100)
    assert files_of(tmp_path) == [f"trace-rank0-window{number}.json.gz" for number in (0, 1)]
    assert steps_of(again) == [[101, 102]]
    done = run(window, tmp_path, 9)
    assert (done.files, done.notices) == ([], [])


def test_a_window_that_not_all_ranks_have_is_recorded_again(tmp_path):
    for rank, count in ((0, 1), (0, 1), (1, 1), (0, 0)):
        found = run(Window(0, 0, 1, 1), tmp_path, 2, rank=rank, world_size=2)
        assert len(found.files) == count


def test_another_profiler_is_left_alone(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
        capture = run(Window(1, 0, 1, 1), tmp_path, 4)
        assert torch.autograd.profiler._is_profiler_enabled
    assert len(capture.notices) == 1
    assert "another torch profiler" in capture.notices[0]
    assert any(event.key == "aten::mul" for event in other.key_averages())


def test_a_trace_that_cannot_be_written_is_a_notice(tmp_path, monkeypatch):
    (tmp_path / "traces").write_text("a file in the way")
    capture = run(Window(0, 0, 1, 2), tmp_path / "traces", 5)
    assert (capture.files, len(capture.notices)) == ([], 1)

    def half(profiler, path):
        Path(path).write_text('{"traceEvents": [{"name": "aten::m')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", half)
    capture = run(Window(0, 0, 1, 1), tmp_path / "more", 3)
    assert "full?" in capture.notices[0]
    assert files_of(tmp_path / "more") == []


@pytest.mark.parametrize(
    ("window", "facts", "arithmetic", "fix"),
    [
        # The sentence of the specification.
        (
            Window(600, 1, 25, 1),
            {"samples": 88, "batch_size": 32, "epochs": 55, "world_size": 4},
            "88 samples / 32 per batch (over 4 ranks) = 3 steps x 55 epochs = 165 < 626",
            "Set trainer.epochs=209, or a profiler.window of at most 165 steps.",
        ),
        (
            Window(50, 2, 5, 1),
            {"samples": 100, "batch_size": 10, "steps": 50},
            "50 steps in all < 57",
            "Set mode_steps=57, or a profiler.window of at most 50 steps.",
        ),
        (
            Window(0, 0, 1, 1),
            {"samples": 0, "batch_size": 8, "steps": 5},
            "0 samples / 8 per batch = 0 steps",
            "An epoch has no step: use more samples or a smaller batch.",
        ),
    ],
)
def test_the_arithmetic_and_the_smallest_change(refused, window, facts, arithmetic, fix):
    error = refused("window-not-reached", check_window, window, **facts)
    assert (error.message.partition(": ")[2], error.fix) == (arithmetic, fix)


@pytest.mark.parametrize(
    "numbers",
    [[-1, 0, 1, 1], [0, -1, 1, 1], [0, 0, 0, 1], [0, 0, 1, -1], [0, 0, 1.5, 1], [1, 2]],
)
def test_a_window_that_is_none_is_refused(refused, numbers):
    refused("invalid-window", Window.of, numbers)


counts = st.integers(1, 40)
small = st.integers(0, 5)


@settings(max_examples=100, deadline=None)
@given(
    window=st.builds(Window, st.integers(0, 40), small, counts, st.sampled_from([0, 1, 2, 5])),
    facts=st.fixed_dictionaries(
        {
            "samples": counts,
            "batch_size": counts,
            "accumulate": st.integers(1, 4),
            "epochs": counts,
        },
    ),
)
def test_the_number_of_epochs_is_the_least(refused, window, facts):
    batches = math.ceil(facts["samples"] / facts["batch_size"])
    total = math.ceil(batches / facts["accumulate"]) * facts["epochs"]
    if total >= window.steps:
        check_window(window, **facts)
        return
    error = refused("window-not-reached", check_window, window, **facts)
    epochs = int(re.search(r"trainer\.epochs=(\d+)", error.fix)[1])
    check_window(window, **{**facts, "epochs": epochs})
    refused("window-not-reached", check_window, window, **{**facts, "epochs": epochs - 1})


SMALL_CAPTURE = """
import sys
from pathlib import Path
import torch
from deltacell.profile.capture import Capture, Window
from deltacell.profile.phases import PhaseTimer

timer = PhaseTimer()
capture = Capture(Window(0, 1, 1, 1), Path(sys.argv[1]), timer=timer)
capture.start()
for _ in range(4):
    torch.ones(3).sum()
    capture.step()
capture.stop()
"""


@pytest.mark.slow
def test_the_profiler_of_a_rank_writes_nothing_to_the_terminal(tmp_path):
    # In a process of its own, because torch reads the level once.
    words = [sys.executable, "-W", "error::FutureWarning", "-c", SMALL_CAPTURE, str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert files_of(tmp_path) == ["trace-rank0-window0.json.gz"]


def test_a_trace_says_how_many_samples_a_step_has(tmp_path):
    (file,) = run(Window(1, 1, 2, 1), tmp_path, 5).files
    assert read_trace(file).samples_per_step == 1
    timer = PhaseTimer()
    capture = Capture(Window(0, 0, 1, 1), tmp_path / "unknown", timer=timer)
    capture.start()
    capture.step()
    capture.stop()
    assert read_trace(capture.files[0]).samples_per_step is None
