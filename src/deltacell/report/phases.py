"""Phases and rates of a run on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltacell.report.terminal import console, print_table


def print_rates(rows: Sequence[tuple[str, Any]]) -> None:
    """Print samples/s of modes: the median over steady steps, its 95 % interval, and ms a step.

    Parameters
    ----------
    rows
        Names of modes with the summaries of their phases.
    """
    table = []
    for mode, summary in rows:
        rate = summary.samples_per_s
        told = (None, None, None) if rate is None else (rate.median, rate.low, rate.high)
        cut = summary.warmup_steps + summary.profiled_steps
        ms = (1e3 * summary.median_s, summary.ms_per_step)
        table.append((mode, *told, *ms, summary.steps, cut))
    print_table(
        "samples a second, steady steps",
        ("mode", "median", "from", "to", "median ms a step", "mean ms a step", "steps", "cut"),
        table,
    )


def print_phases(summary: Any) -> None:
    """Print where the time of a run went.

    Parameters
    ----------
    summary
        Of its phases.
    """
    rows = [
        (time.phase, time.ms_per_step, time.us_per_sample, time.share, time.run_share)
        for time in summary.phases
        if time.run_seconds > 0
    ]
    sums = [sum(row[i] for row in rows) for i in range(1, 5)]
    print_table(
        "phases",
        ("phase", "ms a step", "µs a sample", "share of a step", "share of the run"),
        [*rows, ("all", *sums)],
        total=True,
    )


def print_marginals(rows: Sequence[Any]) -> None:
    """Print marginal costs of parts beside their exposed times.

    Parameters
    ----------
    rows
        Parts with both times.
    """
    table = [
        (
            row.part,
            f"{row.modes[0]} - {row.modes[1]}" if row.modes[1] else row.modes[0],
            row.marginal_ms,
            row.exposed_ms,
        )
        for row in rows
    ]
    print_table(
        "marginal cost and exposed time, ms a step",
        ("part", "difference of modes", "marginal", "exposed in train"),
        table,
    )
    console().print(
        "A difference of two modes is what leaving the part out would save; it equals the exposed "
        "time only where nothing overlaps.",
        markup=False,
    )
