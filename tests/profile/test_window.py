"""The window: its arithmetic, and the error where a training is too short for it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile import Window, check_window, optimizer_steps, steps_per_epoch


def refusal(window: Window, **facts) -> str:
    with pytest.raises(InputError) as caught:
        check_window(window, **facts)
    return str(caught.value)


def test_the_sentence_of_the_specification():
    text = refusal(Window(600, 1, 25, 1), samples=88, batch_size=32, epochs=55, world_size=4)
    assert text == (
        "the window [600,1,25,1] is never reached: "
        "88 samples / 32 per batch (4 ranks x 8) = 3 steps x 55 epochs = 165 < 626\n"
        "  Set trainer.epochs=209, or profiler.window=[139,1,25,1]."
    )


def test_one_rank_one_step_and_one_epoch_are_said_so():
    text = refusal(Window(5, 2, 5, 1), samples=1, batch_size=32)
    assert "1 sample / 32 per batch = 1 step x 1 epoch = 1 < 12" in text
    assert "trainer.epochs=12, or profiler.window=[0,0,1,1]." in text


def test_accumulation_and_uneven_ranks_are_in_the_arithmetic():
    window = Window(5, 2, 5, 2)
    text = refusal(window, samples=100, batch_size=33, accumulate=3, epochs=9, world_size=4)
    assert "100 samples / 33 per batch (over 4 ranks) = 4 batches / 3 per step = 2 steps" in text
    assert "x 9 epochs = 18 < 24" in text
    assert "trainer.epochs=12, or profiler.window=[2,2,5,2]." in text


def test_steps_that_are_set_are_counted_in_place_of_epochs():
    text = refusal(Window(50, 2, 5, 1), samples=100, batch_size=10, steps=50)
    assert "50 steps in all < 57" in text
    assert "mode_steps=57, or profiler.window=[43,2,5,1]." in text
    check_window(Window(50, 2, 5, 1), samples=100, batch_size=10, steps=57)


def test_no_samples_have_no_fix_by_waiting_less():
    text = refusal(Window(0, 0, 1, 1), samples=0, batch_size=8, epochs=5)
    assert "0 samples / 8 per batch = 0 steps x 5 epochs = 0 < 1" in text
    assert "more samples" in text
    assert "profiler.window=" not in text
    assert "more samples" in refusal(Window(0, 0, 1, 1), samples=0, batch_size=8, steps=5)


def test_no_epochs_is_said():
    text = refusal(Window(0, 0, 1, 1), samples=10, batch_size=8, epochs=0)
    assert text.endswith("Set trainer.epochs=1.")


def test_steps_of_an_epoch():
    assert steps_per_epoch(88, 32) == 3
    assert steps_per_epoch(88, 32, drop_last=True) == 2
    assert steps_per_epoch(96, 32) == 3
    assert steps_per_epoch(97, 32, 2) == 2
    assert steps_per_epoch(0, 32) == 0
    assert optimizer_steps(88, 32, 1, 55) == 165
    with pytest.raises(InputError, match="batch_size is 0"):
        steps_per_epoch(88, 0)
    with pytest.raises(InputError, match="epochs is -1"):
        optimizer_steps(88, 8, 1, -1)


@pytest.mark.parametrize(
    "numbers", [[-1, 0, 1, 1], [0, -1, 1, 1], [0, 0, 0, 1], [0, 0, 1, -1], [0, 0, 1.5, 1]]
)
def test_a_window_that_is_none_is_refused(numbers):
    with pytest.raises(InputError, match=r"profiler\.window=\[wait,warmup,active,repeat\]"):
        Window.of(numbers)


def test_a_window_has_four_numbers():
    with pytest.raises(InputError, match="3 numbers"):
        Window.of([1, 2, 3])
    assert Window.of([5, 2, 4, 3]) == Window(5, 2, 4, 3)
    assert Window(5, 2, 4, 3).steps == 33
    assert Window(5, 2, 4, 0).steps == 11


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
