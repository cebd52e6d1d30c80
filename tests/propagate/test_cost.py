from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from deltacell.errors import InputError
from deltacell.propagate import Rates, rates_here
from deltacell.propagate import cost as cost_model
from deltacell.propagate.cost import NEAR_NUMBERS, measure_rates

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cost_model.pooch, "os_cache", lambda name: tmp_path / name)
    return tmp_path / "deltacell" / "rates"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often something was measured."""
    times: list[int] = []

    def measure(device: torch.device, dtype: torch.dtype, workers: int) -> Rates:
        times.append(workers)
        return Rates(call=1e-6 * len(times))

    monkeypatch.setattr(cost_model, "measure_rates", measure)
    return times


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_measured_is_time(workers: int) -> None:
    rates = measure_rates(CPU, torch.float32, workers)
    for field in fields(Rates):
        # Nothing here takes a second a unit, nor less than a thousandth of a cycle.
        assert 1e-14 < getattr(rates, field.name) < 1e-2, field.name


def test_measured_once(cache: Path, measured: list[int]) -> None:
    first = rates_here(CPU, torch.float32, 1)
    assert rates_here(CPU, torch.float32, 1) == first
    assert measured == [1]
    assert len(list(cache.iterdir())) == 1


def test_another_type_or_number_of_threads_is_measured_apart(
    cache: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates_here(CPU, torch.float32, 1)
    rates_here(CPU, torch.float64, 1)
    rates_here(CPU, torch.float32, 2)
    monkeypatch.setattr(torch, "__version__", "0.0")
    rates_here(CPU, torch.float32, 1)
    assert len(measured) == 4
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", '{"schema": 1}', '{"schema": 0, "made_for": {}, "rates": {}}', "null"],
)
def test_a_damaged_file_is_measured_again(cache: Path, measured: list[int], damage: str) -> None:
    rates_here(CPU, torch.float32, 1)
    (path,) = cache.iterdir()
    path.write_text(damage)
    assert rates_here(CPU, torch.float32, 1) == Rates(call=2e-6)
    assert rates_here(CPU, torch.float32, 1) == Rates(call=2e-6)


def test_rates_of_another_machine_are_not_taken(cache: Path, measured: list[int]) -> None:
    rates_here(CPU, torch.float32, 1)
    (path,) = cache.iterdir()
    kept = json.loads(path.read_text())
    kept["made_for"]["machine"] = "another"
    path.write_text(json.dumps(kept))
    rates_here(CPU, torch.float32, 1)
    assert len(measured) == 2


def test_where_nothing_can_be_kept(cache: Path, measured: list[int]) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the directory should be")
    assert rates_here(CPU, torch.float32, 1) == Rates(call=1e-6)
    assert rates_here(CPU, torch.float32, 1) == Rates(call=2e-6)


def test_to_json_and_back() -> None:
    rates = Rates(entry=1.25e-11, call=3e-6)
    assert Rates.from_json(json.loads(json.dumps(rates.to_json()))) == rates


def test_rates_that_are_none() -> None:
    values = Rates().to_json()
    with pytest.raises(InputError, match="another version: call are in one"):
        Rates.from_json({k: v for k, v in values.items() if k != "call"})
    for wrong in (0, -1.0, "fast", float("inf"), float("nan"), None):
        with pytest.raises(InputError, match=r"the rate 'entry' is .*; expected seconds above 0"):
            Rates.from_json({**values, "entry": wrong})


def test_vectors_that_leave_the_cache_cost_more() -> None:
    rates = replace(Rates(), entry=1.0, far_entry=3.0)
    assert rates.product(10, 4, NEAR_NUMBERS) == 40
    assert rates.product(10, 4, NEAR_NUMBERS + 1) == 120
