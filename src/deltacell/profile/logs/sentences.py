"""What was read from a log, as text."""

from __future__ import annotations

from deltacell.base.text import count_text, listed, seconds_text
from deltacell.profile.logs.readings import Cut, Log, LogReading, LogSource, Quantity

_WHAT = {
    Quantity.step: "per step",
    Quantity.epoch: "per epoch",
    Quantity.loader_wait: "per step of waiting for the loader",
    Quantity.self_sum: "of self times on the CPU",
}
_HOW = {
    LogSource.bar_counts: "steps over elapsed time of progress bars",
    LogSource.csv: "times of rows",
    LogSource.profiler_step: "a table of torch.profiler",
    LogSource.bar_display: "displayed rates of short progress bars, averages with their start",
    LogSource.lightning: "a Lightning profiler, means that include the first calls",
}
_BAR_TIME = "the time of a bar, without what lies between two bars"


def reading_sentence(reading: LogReading) -> str:
    """Return a reading with its lines, and what was left out of it."""
    steps = "" if reading.n_steps is None else f", {count_text(reading.n_steps, 'step')}"
    number = len(reading.seconds)
    value = seconds_text(reading.steady)
    if number > 1:
        value = f"{value} (median of {count_text(number - reading.warmup, 'reading')})"
    how = _HOW[reading.source]
    if reading.quantity == Quantity.epoch and reading.source == LogSource.bar_counts:
        how = _BAR_TIME
    sentence = (
        f"{value} {_WHAT[reading.quantity]}, from lines {reading.first_line:,} to"
        f" {reading.last_line:,}{steps}: {how}."
    )
    left_out = [_cut_text(cut) for cut in reading.cuts]
    if reading.warmup:
        left_out.insert(0, count_text(reading.warmup, "reading of warm-up", "readings of warm-up"))
    return f"{sentence} Left out: {listed(left_out)}." if left_out else sentence


def _cut_text(cut: Cut) -> str:
    lines = f"line {cut.first_line:,}"
    if cut.last_line > cut.first_line:
        lines = f"lines {cut.first_line:,} to {cut.last_line:,}"
    times = f"{cut.count:,} times " if cut.count > 1 else ""
    return f"{times}{cut.reason.value} ({lines})"


def settings_sentence(log: Log) -> str:
    """Return what a log says of its training; empty if nothing."""
    known = {
        "batch_size": log.batch,
        "processes": log.ranks,
        "steps per epoch": log.steps_per_epoch,
    }
    settings = [f"{name} {value:,}" for name, value in known.items() if value is not None]
    sentence = f"It says: {', '.join(settings)}." if settings else ""
    if not log.n_long_lines:
        return sentence
    long_lines = count_text(log.n_long_lines, "line was", "lines were")
    return f"{sentence} {long_lines} too long and read in part.".strip()
