"""Rates on the terminal: what stands side by side is of the same kind."""

from __future__ import annotations

from types import SimpleNamespace

from deltacell.report.bench import print_rates


def test_the_median_rate_stands_beside_the_median_time(capsys):
    summary = SimpleNamespace(
        samples_per_s=SimpleNamespace(median=8000.0, low=7000.0, high=9000.0),
        median_s=0.008,
        ms_per_step=76.84,
        steps=20,
        warmup_steps=1,
        profiled_steps=2,
    )
    print_rates([("train", summary)])
    title, columns, row = capsys.readouterr().out.splitlines()
    assert title == "samples per second, steady steps"
    assert " ".join(columns.split()) == (
        "mode median from to median ms per step mean ms per step steps cut"
    )
    assert row.split() == ["train", "8,000", "7,000", "9,000", "8", "76.84", "20", "3"]
