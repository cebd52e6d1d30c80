"""The learning rate really steps, and begins where it should."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from deltacell.errors import InputError
from deltacell.train.config import ScheduleConfig
from deltacell.train.task import Schedule

LR, STEPS, EPOCHS = 0.1, 4, 6


def schedule(**options: object) -> Schedule:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    return Schedule(optimizer, ScheduleConfig(**options), STEPS, EPOCHS)  # type: ignore[arg-type]


def rates(found: Schedule, n: int = STEPS * EPOCHS) -> list[float]:
    return [found.rate(done) for done in range(n)]


@pytest.mark.parametrize("name", ["constant", "cosine", "warm_restarts", "plateau"])
def test_the_first_step_has_the_full_rate(name: str) -> None:
    found = schedule(name=name, min_lr=1e-4)
    assert found.rate(0) == LR
    assert found.optimizer.param_groups[0]["lr"] == LR


def test_the_rate_reaches_the_optimizer() -> None:
    found = schedule(name="cosine")
    found.apply(STEPS * EPOCHS // 2)
    assert found.optimizer.param_groups[0]["lr"] == pytest.approx(LR / 2)


def test_constant_stays() -> None:
    assert set(rates(schedule(name="constant"))) == {LR}


def test_cosine_falls_over_the_whole_training_to_the_least() -> None:
    found = schedule(name="cosine", min_lr=0.01)
    all_of_them = rates(found)
    assert all(a > b for a, b in pairwise(all_of_them))
    assert found.rate(STEPS * EPOCHS) == pytest.approx(0.01)
    assert found.rate(6) == pytest.approx(0.01 + 0.09 * (1 + math.cos(math.pi / 4)) / 2)
    # A training that is made longer afterwards does not rise again.
    assert found.rate(10 * STEPS * EPOCHS) == pytest.approx(0.01)


def test_warm_restarts_return_to_the_full_rate_after_each_period() -> None:
    found = rates(schedule(name="warm_restarts", period=1, period_factor=1, min_lr=0.01))
    assert [step for step, rate in enumerate(found) if rate == LR] == [0, 4, 8, 12, 16, 20]
    assert all(rate > 0.01 for rate in found)


def test_periods_grow_by_their_factor() -> None:
    found = rates(schedule(name="warm_restarts", period=1, period_factor=2), 4 * (1 + 2 + 4) + 1)
    assert [step for step, rate in enumerate(found) if rate == LR] == [0, 4, 12, 28]
    assert found[3] == pytest.approx(LR * (1 + math.cos(math.pi * 3 / 4)) / 2)
    assert found[11] == pytest.approx(LR * (1 + math.cos(math.pi * 7 / 8)) / 2)


@pytest.mark.parametrize("name", ["constant", "cosine", "warm_restarts", "plateau"])
def test_warm_up_rises_in_equal_parts_to_the_schedule(name: str) -> None:
    found, without = schedule(name=name, warmup_steps=5), schedule(name=name)
    assert found.rate(0) == pytest.approx(LR / 5)
    for done in range(STEPS * EPOCHS):
        expected = min(without.rate(done), LR * (done + 1) / 5) if done < 5 else without.rate(done)
        assert found.rate(done) == pytest.approx(expected)


def test_plateau_steps_after_its_patience_and_again() -> None:
    found = schedule(name="plateau", factor=0.5, patience=2)
    seen = []
    for metric in (0.1, 0.2, 0.2, 0.1, 0.15, 0.1, 0.1, 0.1, 0.3, 0.2):
        found.validated(metric)
        seen.append(found.rate(100) / LR)
    assert seen == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_a_better_one_starts_the_patience_over() -> None:
    found = schedule(name="plateau", factor=0.5, patience=1)
    for metric in (0.1, 0.0, 0.2, 0.1, 0.3, 0.2):
        found.validated(metric)
    assert found.rate(9) == LR


def test_plateau_stops_at_the_least_rate() -> None:
    found = schedule(name="plateau", factor=0.1, patience=0, min_lr=0.002)
    for _ in range(9):
        found.validated(0.0)
    assert found.rate(9) == 0.002


def test_a_metric_that_is_no_number_is_no_better_one() -> None:
    found = schedule(name="plateau", factor=0.5, patience=0)
    found.validated(0.1)
    found.validated(math.nan)
    assert found.rate(9) == LR / 2


def test_state_goes_on_where_it_was() -> None:
    first, second = (schedule(name="plateau", factor=0.5, patience=1) for _ in range(2))
    for metric in (0.5, 0.1, 0.1, 0.2):
        first.validated(metric)
    second.load_state_dict(first.state_dict())
    for found in (first, second):
        found.validated(0.3)
    assert first.rate(3) == second.rate(3) == LR / 4


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match=r"schedule.min_lr is 0.5, above optimizer.lr, 0.1"):
        schedule(name="cosine", min_lr=0.5)
    with pytest.raises(InputError, match="there is no schedule 'step'; there are constant"):
        schedule(name="step")
