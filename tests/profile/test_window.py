"""The window: its arithmetic, and the error where a training is too short for it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile.capture import Window, check_window, optimizer_steps, steps_per_epoch


def refusal(window: Window, **facts) -> str:
    with pytest.raises(InputError) as caught:
        check_window(window, **facts)
    assert caught.value.code == "window-not-reached"
    return str(caught.value)


@pytest.mark.parametrize(
    ("window", "facts", "arithmetic", "fix"),
    [
        # The sentence of the specification.
        (
            Window(600, 1, 25, 1),
            {"samples": 88, "batch_size": 32, "epochs": 55, "world_size": 4},
            "88 samples / 32 per batch (4 ranks x 8) = 3 steps x 55 epochs = 165 < 626",
            "Set trainer.epochs=209, or profiler.window=[139,1,25,1].",
        ),
        (
            Window(5, 2, 5, 1),
            {"samples": 1, "batch_size": 32},
            "1 sample / 32 per batch = 1 step x 1 epoch = 1 < 12",
            "Set trainer.epochs=12, or profiler.window=[0,0,1,1].",
        ),
        (
            Window(5, 2, 5, 2),
            {"samples": 100, "batch_size": 33, "accumulate": 3, "epochs": 9, "world_size": 4},
            "100 samples / 33 per batch (over 4 ranks) = 4 batches / 3 per step = 2 steps "
            "x 9 epochs = 18 < 24",
            "Set trainer.epochs=12, or profiler.window=[2,2,5,2].",
        ),
        (
            Window(50, 2, 5, 1),
            {"samples": 100, "batch_size": 10, "steps": 50},
            "50 steps in all < 57",
            "Set mode_steps=57, or profiler.window=[43,2,5,1].",
        ),
        (
            Window(0, 0, 1, 1),
            {"samples": 10, "batch_size": 8, "epochs": 0},
            "10 samples / 8 per batch = 2 steps x 0 epochs = 0 < 1",
            "Set trainer.epochs=1.",
        ),
        (
            Window(0, 0, 1, 1),
            {"samples": 0, "batch_size": 8, "steps": 5},
            "0 samples / 8 per batch = 0 steps",
            "An epoch has no step: use more samples or a smaller batch.",
        ),
    ],
)
def test_the_arithmetic_and_the_smallest_change(window, facts, arithmetic, fix):
    expected = f"the window {window} is never reached: {arithmetic}\n  {fix}"
    assert refusal(window, **facts) == expected


def test_steps_of_an_epoch():
    assert [steps_per_epoch(n, 32) for n in (0, 88, 96)] == [0, 3, 3]
    assert steps_per_epoch(88, 32, drop_last=True) == 2
    assert steps_per_epoch(97, 32, 2) == 2
    assert optimizer_steps(88, 32, 1, 55) == 165
    with pytest.raises(InputError) as caught:
        steps_per_epoch(88, 0)
    assert caught.value.code == "invalid-count"


@pytest.mark.parametrize(
    "numbers", [[-1, 0, 1, 1], [0, -1, 1, 1], [0, 0, 0, 1], [0, 0, 1, -1], [0, 0, 1.5, 1], [1, 2]]
)
def test_a_window_that_is_none_is_refused(numbers):
    with pytest.raises(InputError) as caught:
        Window.of(numbers)
    assert caught.value.code == "invalid-window"


counts = st.integers(1, 40)


@settings(max_examples=100, deadline=None)
@given(
    window=st.builds(
        Window, st.integers(0, 40), st.integers(0, 5), counts, st.sampled_from([0, 1, 2, 5])
    ),
    facts=st.fixed_dictionaries(
        {"samples": counts, "batch_size": counts, "accumulate": st.integers(1, 4), "epochs": counts}
    ),
)
def test_either_fix_is_enough_and_the_number_of_epochs_is_the_least(window, facts):
    if optimizer_steps(**facts) >= window.steps:
        check_window(window, **facts)
        return
    text = refusal(window, **facts)
    epochs = int(re.search(r"trainer\.epochs=(\d+)", text)[1])
    check_window(window, **{**facts, "epochs": epochs})
    refusal(window, **{**facts, "epochs": epochs - 1})
    numbers = re.search(r"profiler\.window=\[([\d,]+)\]", text)[1]
    nearer = Window.of([int(number) for number in numbers.split(",")])
    check_window(nearer, **facts)
    if optimizer_steps(**facts) // max(window.repeat, 1) >= window.warmup + window.active:
        refusal(Window(nearer.wait + 1, window.warmup, window.active, window.repeat), **facts)
