"""The window: its arithmetic, and the error where a training is too short for it."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile.capture import Window, check_window


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
def test_the_arithmetic_and_the_smallest_change(window, facts, arithmetic, fix):
    expected = f"the window {window} is never reached: {arithmetic}\n  {fix}"
    assert refusal(window, **facts) == expected


@pytest.mark.parametrize(
    "numbers", [[-1, 0, 1, 1], [0, -1, 1, 1], [0, 0, 0, 1], [0, 0, 1, -1], [0, 0, 1.5, 1], [1, 2]]
)
def test_a_window_that_is_none_is_refused(numbers):
    with pytest.raises(InputError) as caught:
        Window.of(numbers)
    assert caught.value.code == "invalid-window"


counts = st.integers(1, 40)
small = st.integers(0, 5)


@settings(max_examples=100, deadline=None)
@given(
    window=st.builds(Window, st.integers(0, 40), small, counts, st.sampled_from([0, 1, 2, 5])),
    facts=st.fixed_dictionaries(
        {"samples": counts, "batch_size": counts, "accumulate": st.integers(1, 4), "epochs": counts}
    ),
)
def test_the_number_of_epochs_is_the_least(window, facts):
    batches = math.ceil(facts["samples"] / facts["batch_size"])
    total = math.ceil(batches / facts["accumulate"]) * facts["epochs"]
    if total >= window.steps:
        check_window(window, **facts)
        return
    epochs = int(re.search(r"trainer\.epochs=(\d+)", refusal(window, **facts))[1])
    check_window(window, **{**facts, "epochs": epochs})
    refusal(window, **{**facts, "epochs": epochs - 1})
