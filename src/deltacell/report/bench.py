"""Renderings of benchmarks and of the phases and rates of a run."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.base.rendering import Values
from deltacell.profile.phase_rows import PhaseSummary, PhaseTime
from deltacell.report.terminal import print_line, print_table


def print_bench(result: Values, title: str) -> None:
    """Print the tables of a benchmark, its ratios, its bars and whether they are met."""
    for name, rows in result.items():
        if isinstance(rows, list) and rows and name != "notes":
            _print_rows(title if name == "rows" else name, rows)
    ratios = result.get("ratios")
    if ratios:
        print_table("ratios", ["what", "measured"], list(ratios.items()))
    if result["bars"]:
        bars = [_bar_row(name, bar) for name, bar in result["bars"].items()]
        print_table("bars", ["what", "measured", "bar", ""], bars)
    for note in result.get("notes", ()):
        print_line(note)
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    print_line(f"{result['command']} on {machine}")


def _print_rows(title: str, rows: Sequence[Values]) -> None:
    """Print rows with the columns of the first one; columns of lists are only in the JSON."""
    columns = [key for key, value in rows[0].items() if not isinstance(value, list | dict)]
    titles = [key.replace("_", " ") for key in columns]
    cells = [[row[key] for key in columns] for row in rows]
    print_table(title, titles, cells)


def _bar_row(name: str, bar: Values) -> list[object]:
    limit = "at_least" if "at_least" in bar else "at_most"
    required = f"{limit.replace('_', ' ')} {bar[limit]:,}"
    met = "met" if bar["met"] else "NOT MET"
    return [name.replace("_", " "), bar["measured"], required, met]


def print_rates(rows: Sequence[tuple[str, PhaseSummary]]) -> None:
    """Print the speed of modes in samples per second, with an interval, and in time per step."""
    columns = (
        "mode",
        "median",
        "from",
        "to",
        "median ms per step",
        "mean ms per step",
        "steps",
        "cut",
    )
    table = [_rate_row(mode, summary) for mode, summary in rows]
    print_table("samples per second, steady steps", columns, table)


def _rate_row(mode: str, summary: PhaseSummary) -> list[object]:
    rates = summary.samples_per_s or (None, None, None)
    n_cut = summary.warmup_steps + summary.profiled_steps
    median_ms = 1e3 * summary.median_s
    return [mode, *rates, median_ms, summary.ms_per_step, summary.steps, n_cut]


def print_phases(summary: PhaseSummary) -> None:
    """Print the time of each phase that took any, and their sum."""
    rows = [_phase_row(phase) for phase in summary.phases if phase.run_seconds > 0]
    sums = [sum(values) for values in zip(*rows, strict=True)] or [0, 0, 0, 0]
    names = [phase.phase for phase in summary.phases if phase.run_seconds > 0]
    table = [(name, *row) for name, row in zip(names, rows, strict=True)]
    table.append(("all", *sums))
    columns = ("phase", "ms per step", "µs per sample", "share of a step", "share of the run")
    print_table("phases", columns, table, total=True)


def _phase_row(phase: PhaseTime) -> tuple[float, float, float, float]:
    return phase.ms_per_step, phase.us_per_sample, phase.share, phase.run_share


def print_marginals(rows: Sequence[Values]) -> None:
    """Print what each part of a step costs, as the difference of two modes."""
    table = [_marginal_row(row) for row in rows]
    columns = ("part", "difference", "marginal", "noise", "exposed")
    print_table("differences of modes, and exposed times in train, ms per step", columns, table)
    print_line(
        "The difference between two modes is the time saved by leaving the part out; it equals the "
        "exposed time only if nothing overlaps. A part that costs less than the noise of the "
        "difference may even seem to save time.",
    )


def _marginal_row(row: Values) -> list[object]:
    modes = [mode for mode in row["modes"] if mode]
    noise = f"± {row['noise_ms']:.3g}"
    return [row["part"], " - ".join(modes), row["marginal_ms"], noise, row["exposed_ms"]]
