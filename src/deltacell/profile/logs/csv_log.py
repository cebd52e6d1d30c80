"""CSV files of metrics, exported from Weights & Biases or TensorBoard or written by a logger.

A reading is the time between two rows over the steps between them. Intervals across the end of an
epoch are left out, because they contain validation.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.profile.logs.lines import LogLine
from deltacell.profile.logs.readings import (
    CutReason,
    Cuts,
    Log,
    LogReading,
    LogSource,
    Quantity,
    is_time,
)

MOST_ROWS = 1_000_000
MOST_INTERVALS = 200
_LEAST_WHOLE_S = 10  # seconds of an interval if times are whole seconds

# Training steps first: W&B counts calls of its own log() in _step.
_STEP = ("trainer/global_step", "global_step", "train/global_step", "step", "_step")
_TIME = (
    "_runtime",
    "relative time (process)",
    "relative time (wall)",
    "relative time",
    "_timestamp",
    "timestamp",
    "wall time",
    "wall_time",
    "time",
)
_EPOCH = ("epoch", "train/epoch", "trainer/epoch")
_BATCH = ("batch_size",)


@dataclass(frozen=True)
class Columns:
    """The places of the columns that are read."""

    step: int
    time: int | None
    epoch: int | None
    batch: int | None


@dataclass(frozen=True)
class _Row:
    line: int
    step: int
    time_s: float
    epoch: int | None


def columns_of(header: str) -> Columns | None:
    """Return where a table of metrics has its steps and times; None if it has no steps."""
    if "," not in header or len(header) > 100_000:
        return None
    try:
        cells = next(csv.reader([header]), [])
    except csv.Error:
        return None
    names = [cell.strip().casefold().rpartition(" - ")[2] for cell in cells]
    step = _place(names, _STEP)
    if step is None:
        return None
    return Columns(step, _place(names, _TIME), _place(names, _EPOCH), _place(names, _BATCH))


def read_csv_log(path: Path, columns: Columns, lines: Iterable[LogLine]) -> Log:
    """Read the rows after the header."""
    if columns.time is None:
        raise InputError(
            "the table has steps and no times",
            code="no-times-in-log",
            where=path,
            fix=f"Export it with one of the columns {', '.join(_TIME)}.",
        )
    cuts = Cuts()
    rows: list[_Row] = []
    batches: set[int] = set()
    last_line = 1
    n_long_lines = 0
    for line in lines:
        last_line = line.number
        n_long_lines += line.is_cut
        cells = _cells(line.text)
        row = _row(line.number, cells, columns)
        batch = _number(cells, columns.batch)
        if batch is not None and batch >= 1 and batch.is_integer() and len(batches) < 2:
            batches.add(int(batch))
        if row is None or len(rows) >= MOST_ROWS:
            continue
        if rows and (row.step < rows[-1].step or row.time_s < rows[-1].time_s):
            cuts.add(CutReason.resumed, row.line)
            continue
        rows.append(row)
    readings = [_step_reading(rows, cuts), _epoch_reading(rows)]
    return Log(
        path,
        tuple(reading for reading in readings if reading is not None),
        batch=batches.pop() if len(batches) == 1 else None,
        steps_per_epoch=_steps_per_epoch(rows),
        n_lines=last_line,
        n_long_lines=n_long_lines,
    )


def _place(names: list[str], known: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _row(line: int, cells: list[str], columns: Columns) -> _Row | None:
    step = _number(cells, columns.step)
    time_s = _number(cells, columns.time)
    epoch = _number(cells, columns.epoch)
    if step is None or time_s is None or not step.is_integer() or not 0 <= step < 1e15:
        return None
    is_epoch = epoch is not None and 0 <= epoch < 1e15
    return _Row(line, int(step), time_s, int(epoch) if epoch is not None and is_epoch else None)


def _number(cells: list[str], place: int | None) -> float | None:
    """Return a finite number, or a date and time as seconds."""
    if place is None or place >= len(cells):
        return None
    text = cells[place].strip()
    if re.match(r"\d{4}-\d\d-\d\d[ T]\d", text):
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _step_reading(rows: list[_Row], cuts: Cuts) -> LogReading | None:
    if len(rows) < 2:
        return None
    is_whole = all(row.time_s.is_integer() for row in rows)
    least_s = (rows[-1].time_s - rows[0].time_s) / MOST_INTERVALS
    least_s = max(least_s, _LEAST_WHOLE_S if is_whole else 0.0)
    step_s = []
    n_steps = 0
    start = rows[0]
    for row in rows[1:]:
        elapsed_s = row.time_s - start.time_s
        if row.epoch is not None and start.epoch is not None and row.epoch != start.epoch:
            cuts.add(CutReason.across_epochs, start.line, row.line)
            start = row
        elif row.step > start.step and elapsed_s >= least_s:
            if is_time(elapsed_s / (row.step - start.step)):
                step_s.append(elapsed_s / (row.step - start.step))
                n_steps += row.step - start.step
            start = row
    if not step_s:
        return None
    return LogReading(
        Quantity.step,
        LogSource.csv,
        tuple(step_s),
        rows[0].line,
        rows[-1].line,
        n_steps,
        cuts.all(),
    )


def _first_rows(rows: list[_Row]) -> list[_Row]:
    """Return the first row of every epoch."""
    first: list[_Row] = []
    for row in rows:
        if row.epoch is not None and (not first or row.epoch != first[-1].epoch):
            first.append(row)
    return first


def _epoch_reading(rows: list[_Row]) -> LogReading | None:
    """Return the times from the first row of an epoch to that of the next."""
    first = _first_rows(rows)
    cuts = Cuts()
    if len(first) > 2:
        cuts.add(CutReason.first_epoch, first[0].line, first[1].line)
        first = first[1:]
    pairs = list(itertools.pairwise(first))
    seconds = [
        (after.time_s - before.time_s) / (after.epoch - before.epoch)
        for before, after in pairs
        if after.epoch is not None and before.epoch is not None and after.epoch > before.epoch
    ]
    times = tuple(value for value in seconds if is_time(value))
    if not times:
        return None
    last = first[-1]
    n_steps = last.step - first[0].step
    return LogReading(
        Quantity.epoch,
        LogSource.csv,
        times,
        first[0].line,
        last.line,
        n_steps,
        cuts.all(),
    )


def _steps_per_epoch(rows: list[_Row]) -> int | None:
    """Return the steps from the first row of an epoch to that of the next, if all are equal."""
    first = _first_rows(rows)
    steps = {after.step - before.step for before, after in itertools.pairwise(first)}
    only = steps.pop() if len(steps) == 1 else 0
    return only if only > 0 else None
