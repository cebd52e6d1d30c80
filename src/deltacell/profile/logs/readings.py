"""What a log says, as values: readings, where they stand, and what was left out of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from deltacell.profile.logs.warmup import n_warmup


class Quantity(StrEnum):
    """What the seconds of a reading are of."""

    step = "step"
    epoch = "epoch"
    loader_wait = "loader wait"  # per step, in which the training waits for a batch
    self_sum = "self times"  # of all operators on the CPU, over all steps of a window


class LogSource(StrEnum):
    """Where in a log a reading stands, the most accurate first."""

    bar_counts = "progress bar"  # steps done over time elapsed
    csv = "CSV"
    profiler_step = "torch.profiler table"
    bar_display = "displayed rate"  # of bars that are too short for their seconds
    lightning = "Lightning profiler"  # means over all calls, warm-up included


class CutReason(StrEnum):
    """Why something that a log contains is in no reading."""

    sanity_check = "sanity check"
    evaluation = "validation, test or prediction"
    other_bar = "other progress bar"
    across_evaluation = "interval with validation inside"
    across_epochs = "interval across the end of an epoch"
    other_unit = "bar that does not count steps"
    resumed = "row of a step that had been logged before"
    first_epoch = "first epoch"


@dataclass(frozen=True)
class Cut:
    """Bars, intervals or rows that were left out."""

    reason: CutReason
    count: int
    first_line: int
    last_line: int


@dataclass(frozen=True)
class LogReading:
    """Seconds that a log gives for one quantity, in the order of the log, warm-up included."""

    quantity: Quantity
    source: LogSource
    seconds: tuple[float, ...]
    first_line: int
    last_line: int
    n_steps: int | None = None  # that the readings cover
    cuts: tuple[Cut, ...] = ()

    @property
    def warmup(self) -> int:
        """The number of leading readings that are warm-up."""
        return n_warmup(self.seconds)

    @property
    def steady(self) -> float:
        """The median of the readings that are not warm-up."""
        return float(np.median(self.seconds[self.warmup :]))


@dataclass(frozen=True)
class Log:
    """A log and everything that was read from it; None is what it does not say."""

    path: Path
    readings: tuple[LogReading, ...]
    batch: int | None = None  # of one process
    ranks: int | None = None
    steps_per_epoch: int | None = None
    n_lines: int = 0
    n_long_lines: int = 0  # whose end was not read

    def reading(self, quantity: Quantity) -> LogReading | None:
        """Return the most accurate reading of a quantity."""
        readings = [reading for reading in self.readings if reading.quantity == quantity]
        order = list(LogSource)
        return min(readings, key=lambda reading: order.index(reading.source), default=None)


def is_time(seconds: float) -> bool:
    """Return whether a number can be a time: positive and finite, and so is its inverse."""
    return 1e-12 < seconds < 1e12 and math.isfinite(seconds)


class Cuts:
    """Counts what is left out, by reason."""

    def __init__(self) -> None:
        self._by_reason: dict[CutReason, Cut] = {}

    def add(self, reason: CutReason, line: int, last_line: int | None = None) -> None:
        """Count something that stands on these lines."""
        last = line if last_line is None else last_line
        cut = self._by_reason.get(reason)
        if cut is None:
            self._by_reason[reason] = Cut(reason, 1, line, last)
            return
        first = min(cut.first_line, line)
        self._by_reason[reason] = Cut(reason, cut.count + 1, first, max(cut.last_line, last))

    def all(self) -> tuple[Cut, ...]:
        """Return the cuts in the order in which their reasons first occurred."""
        return tuple(self._by_reason.values())
