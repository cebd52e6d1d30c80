"""Whether a run was even from its beginning to its end, on steps that are made up."""

from __future__ import annotations

import polars as pl
import pytest

from deltacell.profile.phase_rows import PHASES, unevenness


def steps(*phases):
    """Make steady steps, each given as the seconds of its phases."""
    made = []
    for number, given in enumerate(phases, start=1):
        seconds = dict.fromkeys(PHASES, 0.0) | given
        made.append(
            {
                "step": number,
                "wall_s": sum(seconds.values()),
                **{f"{phase}_s": value for phase, value in seconds.items()},
            }
        )
    return pl.DataFrame(made)


FAST = {"forward": 3.0, "backward": 4.0, "loss": 0.1, "optimizer": 1.0}
SLOW = {phase: 10 * seconds for phase, seconds in FAST.items()}


def test_a_change_in_every_large_phase():
    found = unevenness(steps(*[FAST] * 50, *[SLOW] * 50))
    assert found.is_everywhere
    assert (found.fast_s, found.slow_s) == pytest.approx((8.1, 81))
    assert (found.fast_steps, found.slow_steps) == ((1, 10), (51, 60))
    # The loss is a small part and is not looked at.
    assert found.changed == ("forward", "backward", "optimizer")
    assert found.unchanged == ()


def test_it_may_also_become_faster():
    found = unevenness(steps(*[SLOW] * 50, *[FAST] * 50))
    assert found.is_everywhere
    assert (found.fast_steps, found.slow_steps) == ((51, 60), (1, 10))


@pytest.mark.parametrize("still", ["forward", "backward", "optimizer"])
def test_a_large_phase_that_stays_is_the_programs_own_doing(still):
    found = unevenness(steps(*[FAST] * 50, *[SLOW | {still: FAST[still]}] * 50))
    assert not found.is_everywhere
    assert found.unchanged == (still,)


def test_a_phase_that_becomes_all_of_the_step_is_not_every_part():
    # The others are small in the slow part, and were large in the fast one.
    found = unevenness(steps(*[FAST] * 50, *[FAST | {"data_wait": 1000.0}] * 50))
    assert found.changed == ("data_wait",)
    assert not found.is_everywhere


def test_the_only_phase_is_not_every_part():
    found = unevenness(steps(*[{"data_wait": 1.0}] * 30, *[{"data_wait": 9.0}] * 30))
    assert not found.is_everywhere


@pytest.mark.parametrize(
    "given",
    [
        [FAST] * 100,
        # One step in ten, wherever it is, is no part of the run.
        [*[FAST] * 4, SLOW, *[FAST] * 5] * 10,
        [*[FAST] * 99, SLOW],
        # Twice as long is within what machines do.
        [*[FAST] * 50, *[{p: 2 * s for p, s in FAST.items()}] * 50],
        # Too few to tell.
        [FAST, FAST, SLOW, SLOW, SLOW],
        [{}] * 40,
    ],
)
def test_what_is_even(given):
    assert unevenness(steps(*given)) is None


def test_few_steps_are_cut_into_fewer_parts():
    found = unevenness(steps(*[FAST] * 3, *[SLOW] * 3))
    assert (found.fast_steps, found.slow_steps) == ((1, 3), (4, 6))
    assert found.is_everywhere


def test_without_steps():
    assert unevenness(steps(FAST).head(0)) is None
