"""Renderings of benchmarks and of the phases and rates of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import print_line, print_table


def print_bench(result: Mapping[str, Any], title: str) -> None:
    for name, rows in result.items():
        if isinstance(rows, list) and rows and name != "notes":
            columns = [key for key, one in rows[0].items() if not isinstance(one, list | dict)]
            heads = [key.replace("_", " ") for key in columns]
            cells = [[row[key] for key in columns] for row in rows]
            print_table(title if name == "rows" else name, heads, cells)
    if ratios := result.get("ratios"):
        print_table("ratios", ["what", "measured"], list(ratios.items()))
    bars = []
    for name, bar in result["bars"].items():
        limit = "at_least" if "at_least" in bar else "at_most"
        wanted = f"{limit.replace('_', ' ')} {bar[limit]:,}"
        met = "met" if bar["met"] else "NOT MET"
        bars.append([name.replace("_", " "), bar["measured"], wanted, met])
    if bars:
        print_table("bars", ["what", "measured", "bar", ""], bars)
    for note in result.get("notes", ()):
        print_line(note)
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    print_line(f"{result['command']} on {machine}")


def print_rates(rows: Sequence[tuple[str, Any]]) -> None:
    table = []
    for mode, summary in rows:
        rates = summary.samples_per_s or (None, None, None)
        cut = summary.warmup_steps + summary.profiled_steps
        times = (1e3 * summary.median_s, summary.ms_per_step)
        table.append((mode, *rates, *times, summary.steps, cut))
    columns = ("mode", "median", "from", "to", "median ms per step", "mean ms per step")
    print_table("samples per second, steady steps", (*columns, "steps", "cut"), table)


def print_phases(summary: Any) -> None:
    rows = [
        (time.phase, time.ms_per_step, time.us_per_sample, time.share, time.run_share)
        for time in summary.phases
        if time.run_seconds > 0
    ]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    columns = ("phase", "ms per step", "µs per sample", "share of a step", "share of the run")
    print_table("phases", columns, rows, total=True)


def print_marginals(rows: Sequence[Mapping[str, Any]]) -> None:
    table = [
        (row["part"], " - ".join(filter(None, row["modes"])), row["marginal_ms"], row["exposed_ms"])
        for row in rows
    ]
    columns = ("part", "difference of modes", "marginal", "exposed in train")
    print_table("marginal cost and exposed time, ms per step", columns, table)
    print_line(
        "The difference between two modes is the time saved by leaving the part out; it equals the "
        "exposed time only if nothing overlaps.",
    )
