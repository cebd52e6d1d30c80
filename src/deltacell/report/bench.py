"""Renderings of benchmarks, and of the phases and rates of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import print_line, print_table


def print_bench(result: Mapping[str, Any], title: str) -> None:
    """Print the rows of a benchmark, and whether its bars are met."""
    rows = result["rows"]
    columns = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    names = [name.replace("_", " ") for name in columns]
    print_table(title, names, [[row[name] for name in columns] for row in rows])
    bars = []
    for name, bar in result["bars"].items():
        limit = "at least" if "at_least" in bar else "at most"
        wanted = f"{limit} {bar[limit.replace(' ', '_')]:,}"
        met = "met" if bar["met"] else "NOT MET"
        bars.append([name.replace("_", " "), bar["measured"], wanted, met])
    if bars:
        print_table("bars", ["what", "measured", "bar", ""], bars)
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    print_line(f"{result['command']} on {machine}")


def print_rates(rows: Sequence[tuple[str, Any]]) -> None:
    """Print samples/s of modes, given with the summaries of their phases, and ms per step."""
    table = []
    for mode, summary in rows:
        rate = summary.samples_per_s
        rates = (None, None, None) if rate is None else (rate.median, rate.low, rate.high)
        cut = summary.warmup_steps + summary.profiled_steps
        times = (1e3 * summary.median_s, summary.ms_per_step)
        table.append((mode, *rates, *times, summary.steps, cut))
    columns = ("mode", "median", "from", "to", "median ms per step", "mean ms per step")
    print_table("samples per second, steady steps", (*columns, "steps", "cut"), table)


def print_phases(summary: Any) -> None:
    """Print where the time of a run went, from the summary of its phases."""
    rows = [
        (time.phase, time.ms_per_step, time.us_per_sample, time.share, time.run_share)
        for time in summary.phases
        if time.run_seconds > 0
    ]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    columns = ("phase", "ms per step", "µs per sample", "share of a step", "share of the run")
    print_table("phases", columns, rows, total=True)


def print_marginals(rows: Sequence[Any]) -> None:
    """Print marginal costs of parts beside their exposed times."""
    table = [
        (row.part, " - ".join(mode for mode in row.modes if mode), row.marginal_ms, row.exposed_ms)
        for row in rows
    ]
    columns = ("part", "difference of modes", "marginal", "exposed in train")
    print_table("marginal cost and exposed time, ms per step", columns, table)
    print_line(
        "A difference of two modes is what leaving the part out would save; it equals the exposed "
        "time only where nothing overlaps."
    )
