"""The bench of training: what its numbers are made of."""

from __future__ import annotations

from typing import Any

import pytest

from deltacell.bench import train as bench
from deltacell.errors import InputError
from deltacell.train.compose import compose


def measured(with_: list[float], without: list[float], timers: float = 0.001) -> dict[str, Any]:
    return {
        "s_with": with_,
        "s_without": without,
        "data_wait_shares": [0.001, 0.004, 0.002],
        "timers": {"s_per_step": timers},
        "peak_mib": 900.0,
        "batch_size": 64,
        "parameters": 1,
        "propagation": None,
    }


def test_a_difference_counts_where_enough_pairs_all_say_so() -> None:
    assert bench.is_resolved([0.01] * 5)
    assert not bench.is_resolved([0.01] * 4)
    assert not bench.is_resolved([0.5, 0.5, 0.5, 0.5, -0.001])


def test_the_overhead_is_that_of_the_pairs_where_it_is_seen() -> None:
    row = bench._row(measured([1.02] * 5, [1.0] * 5))
    assert row["phase_overhead_by"] == "interleaved"
    assert row["phase_overhead"] == pytest.approx(0.02)
    assert row["phase_overhead_direct"] == pytest.approx(0.001)


def test_the_overhead_is_that_of_the_calls_where_pairs_are_noise() -> None:
    row = bench._row(measured([0.9, 1.3, 1.0], [1.0, 1.0, 1.2]))
    assert row["phase_overhead_by"] == "direct"
    assert row["phase_overhead"] == pytest.approx(0.001)
    assert row["phase_overhead_interleaved"] == pytest.approx(-0.1)
    assert row["samples_per_s"] == pytest.approx(64.0)
    assert row["data_wait_share"] == 0.002


def test_bars_are_at_most() -> None:
    rows = [{"model": "dango", "data_wait_share": 0.02, "phase_overhead": 0.002}]
    bars = bench._bars(rows)
    assert bars["dango_data_wait_share"] == {"at_most": 0.01, "measured": 0.02, "met": False}
    assert bars["dango_phase_overhead"]["met"]


def test_a_clock_counts_from_batch_to_batch_of_an_epoch() -> None:
    clock = bench.Clock()
    for _ in range(2):
        clock.begin(0, 1, 0, 3)
        for _ in range(3):
            clock.step(None, 4)
    assert len(clock.seconds) == 4
    assert min(clock.seconds) > 0


def test_the_calls_of_a_step_are_counted() -> None:
    costs = bench.timer_costs("dango")
    # Waiting, preparation, transfer, forward twice, loss, backward, logging, optimizer,
    # communication, other, and logging after the row.
    assert costs["switches_per_step"] == 12
    whole = 12 * costs["switch_s"] + costs["end_step_s"] + costs["flush_s"]
    assert costs["s_per_step"] == pytest.approx(whole)


def test_ratios_are_of_turns_side_by_side() -> None:
    def turn(seconds: float, batch: int) -> dict[str, float]:
        return {"s_with": seconds, "s_without": 2 * seconds, "batch_size": batch}

    # The machine was ten times slower in the second turn.
    turns = {
        "dango": [turn(1.0, 10), turn(10.0, 10), turn(1.0, 10)],
        "hetero_cell_late": [turn(3.0, 10), turn(31.0, 10), turn(9.0, 10)],
    }
    ratios = bench._ratios(turns)
    assert ratios == {"hetero_cell_late_over_dango_s_per_sample": pytest.approx(3.1)}
    bars = bench._late_bars([{"model": "hetero_cell_late", "peak_mib": 5000.0}], ratios)
    assert bars["hetero_cell_late_over_dango_s_per_sample"]["met"]
    assert not bars["hetero_cell_late_peak_mib"]["met"]
    assert bench._late_bars([], bench._ratios({"dango": turns["dango"]})) == {}


@pytest.mark.parametrize("model", bench.CONFIGS)
def test_no_run_comes_to_the_end_of_its_epoch(model: str) -> None:
    config = compose(bench._words(model, False, 30, 0))
    assert config.data.synthetic == "yeast"
    assert config.mode_steps is not None
    there = config.data.synthetic_genotypes
    assert there is not None
    share = 1 - config.split.validation - config.split.test
    assert config.mode_steps * config.data.batch_size < share * there


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="steps 1, repeats 1"):
        bench.run(steps=1, repeats=1)
    with pytest.raises(InputError, match="hetero_cell_late"):
        bench.run(models=["dago"])
