"""The bench of training: what its numbers are made of."""

from __future__ import annotations

from typing import Any

import pytest

from deltacell.bench import train as bench
from deltacell.errors import InputError
from deltacell.train.compose import compose


def turns(with_: list[float], without: list[float]) -> list[dict[str, Any]]:
    facts = {"timers": {"s_per_step": 0.001}, "peak_mib": 900.0, "parameters": 1}
    facts |= {"batch_size": 64, "propagation": None}
    waits = [0.001, 0.004, 0.002, 0.002, 0.002]
    times = zip(with_, without, waits, strict=False)
    return [{"s_with": a, "s_without": b, "data_wait_share": c, **facts} for a, b, c in times]


def test_the_overhead_is_that_of_the_pairs_if_it_is_seen() -> None:
    assert bench.is_resolved([0.01] * 5)
    assert not bench.is_resolved([0.01] * 4)
    assert not bench.is_resolved([0.5, 0.5, 0.5, 0.5, -0.001])
    row = bench._row(turns([1.02] * 5, [1.0] * 5))
    assert row["phase_overhead_by"] == "interleaved"
    assert row["phase_overhead"] == pytest.approx(0.02)
    assert row["phase_overhead_direct"] == pytest.approx(0.001)
    row = bench._row(turns([0.9, 1.3, 1.0], [1.0, 1.0, 1.2]))
    assert row["phase_overhead_by"] == "direct"
    assert row["phase_overhead"] == pytest.approx(0.001)
    assert row["phase_overhead_interleaved"] == pytest.approx(-0.1)
    assert row["samples_per_s"] == pytest.approx(64.0)
    assert row["data_wait_share"] == 0.002


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


def test_ratios_are_of_turns_side_by_side_and_bars_are_at_most() -> None:
    # The machine was ten times slower in the second turn.
    seconds = {"dango": [1.0, 10.0, 1.0], "hetero_cell_late": [3.0, 31.0, 9.0]}
    measured = {model: turns(of, [2 * s for s in of]) for model, of in seconds.items()}
    ratios = bench._ratios(measured)
    assert ratios == {"hetero_cell_late_over_dango_s_per_sample": pytest.approx(3.1)}
    assert bench._ratios({"hetero_cell": measured["dango"]}) == {}
    facts = {"data_wait_share": 0.02, "phase_overhead": 0.002, "peak_mib": 5000.0}
    bars = bench._bars([{"model": "hetero_cell_late", **facts}], ratios)
    assert {name: bar["met"] for name, bar in bars.items()} == {
        "hetero_cell_late_data_wait_share": False,
        "hetero_cell_late_phase_overhead": True,
        "hetero_cell_late_over_dango_s_per_sample": True,
        "hetero_cell_late_peak_mib": False,
    }


@pytest.mark.parametrize("model", bench.CONFIGS)
def test_no_run_comes_to_the_end_of_its_epoch(model: str) -> None:
    config = compose(bench._words(model, False, 30, 0))
    assert config.data.synthetic == "yeast"
    share = 1 - config.split.validation - config.split.test
    there = config.data.synthetic_genotypes or 0
    assert (config.mode_steps or 0) * config.data.batch_size < share * there


def test_an_imported_folder_takes_the_place_of_the_synthetic_yeast() -> None:
    options = {"quick": False, "steps": 3, "seed": 0, "folder": "mine", "screen": "s"}
    config = bench._config("hetero_cell_late", **options)
    assert (config.data.folder, config.data.screen, config.data.where) == ("mine", "s", {})


def test_what_cannot_be_measured_is_refused() -> None:
    for options, code in (({"steps": 1}, "out-of-range"), ({"models": ["dago"]}, "unknown-name")):
        with pytest.raises(InputError) as caught:
            bench.run(**options)  # type: ignore[arg-type]
        assert caught.value.code == code
