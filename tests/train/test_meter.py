"""Means of an epoch, and the newest loss."""

from __future__ import annotations

import math

import pytest
import torch

from deltacell.train.loop import Latest, Meter


def test_means_are_over_genotypes_not_over_batches() -> None:
    meter = Meter("cpu")
    meter.add({"loss": torch.tensor(1.0), "mse": torch.tensor(2.0)}, 30)
    meter.add({"loss": torch.tensor(4.0), "mse": torch.tensor(0.0)}, 10)
    assert meter.means() == {"loss": 1.75, "mse": 1.5}


def test_small_values_are_not_lost_among_many() -> None:
    meter = Meter("cpu")
    meter.add({"loss": torch.tensor(1e8)}, 1)
    for _ in range(1000):
        meter.add({"loss": torch.tensor(1.0)}, 1)
    assert meter.means()["loss"] * 1001 == pytest.approx(1e8 + 1000, rel=1e-12)


def test_state_goes_on_in_the_first_rank_alone() -> None:
    meter, first, other = (Meter("cpu") for _ in range(3))
    meter.add({"loss": torch.tensor(2.0)}, 4)
    first.load_state_dict(meter.state_dict())
    other.load_state_dict(meter.state_dict(), first=False)
    assert first.means() == meter.means() == {"loss": 2.0}
    assert other.means() == {"loss": 0.0}
    # What goes on changes nothing of the state it came from.
    first.add({"loss": torch.tensor(8.0)}, 4)
    assert meter.means() == {"loss": 2.0}
    assert first.means() == {"loss": 5.0}


def test_reset_forgets() -> None:
    meter = Meter("cpu")
    meter.add({"loss": torch.tensor(2.0)}, 4)
    meter.reset()
    assert meter.means() == {}
    assert meter.state_dict() == {"genotypes": 0, "sums": {}}


def test_latest_is_the_newest_value() -> None:
    latest = Latest()
    assert math.isnan(latest.value)
    assert latest.look(torch.tensor(2.5, requires_grad=True)) == 2.5
    assert latest.value == 2.5
