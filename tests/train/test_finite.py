"""Losses that are no numbers are seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deltacell.train import finite
from deltacell.train.loop import LOOK_EVERY, FiniteGuard, NotFiniteError


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_cpu_says_so_at_once_with_the_rows(value: float) -> None:
    guard = FiniteGuard("cpu")
    guard.see(torch.tensor(1.0), 6, 2, torch.tensor([1, 2]))
    with pytest.raises(NotFiniteError, match=r"the loss is -?(nan|inf) at step 7 \(epoch 2\)") as e:
        guard.see(torch.tensor(value), 7, 2, torch.tensor([3, 4]))
    assert e.value.rows.tolist() == [3, 4]
    assert (e.value.step, e.value.epoch) == (7, 2)


class Event:
    """Stands for a device's: it has happened when it is asked for the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FiniteGuard:
    """A guard that believes to be on a device, with the tensors on the CPU."""
    plain = torch.empty

    def empty(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return plain(*args, **options)

    monkeypatch.setattr(finite.torch, "empty", empty)
    monkeypatch.setattr(finite.torch.cuda, "Event", Event)
    guard = FiniteGuard("cpu")
    guard.device = torch.device("cuda")
    return guard


@pytest.mark.parametrize("bad", [1, 5, LOOK_EVERY, LOOK_EVERY + 3])
def test_a_device_is_asked_later_and_the_step_is_the_right_one(
    device: FiniteGuard, bad: int
) -> None:
    def see_many() -> None:
        for step in range(1, 4 * LOOK_EVERY):
            loss = torch.tensor(math.nan if step == bad else 1.0)
            device.see(loss, step, 1, torch.tensor([step]))

    with pytest.raises(NotFiniteError) as caught:
        see_many()
    assert caught.value.step == bad
    assert caught.value.rows.tolist() == [bad]


def test_settle_looks_at_all_that_was_seen(device: FiniteGuard) -> None:
    for step in range(1, LOOK_EVERY + 3):
        device.see(torch.tensor(1.0), step, 1, torch.tensor([step]))
    device.settle()
    device.see(torch.tensor(math.nan), 99, 2, torch.tensor([7]))
    with pytest.raises(NotFiniteError, match="step 99"):
        device.settle()
