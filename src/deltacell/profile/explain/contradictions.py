"""Why a comparison of two trainings by a measurement is invalid, as values without text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from deltacell.profile.explain.account import Account, EpochRatio
from deltacell.profile.explain.figures import PERS, Figure, SideReading
from deltacell.profile.explain.measurements import Side

CLOSE = 0.04  # ratios that differ by less than this share are equal up to rounding


@dataclass(frozen=True, eq=False)
class Contradiction:
    """Something that is wrong with a measurement, or with all of them together."""

    kind: ClassVar[str]
    figure: Figure | None  # None: of all measurements together


@dataclass(frozen=True, eq=False)
class OfFigure(Contradiction):
    """Something that is wrong with a whole measurement."""

    figure: Figure


@dataclass(frozen=True, eq=False)
class OfSide(OfFigure):
    """Something that is wrong with the reading of one side."""

    side: SideReading


@dataclass(frozen=True, eq=False)
class DifferentData(Contradiction):
    """Epochs of the two trainings differ in their number of samples."""

    kind = "different_data"
    a: Side
    b: Side


@dataclass(frozen=True, eq=False)
class NestedSum(OfFigure):
    """Durations of nested events were added up."""

    kind = "nested_sum"
    times_of_step: tuple[tuple[str, float], ...]  # name of the training, sum / time of a step


@dataclass(frozen=True, eq=False)
class UnequalWindows(OfFigure):
    """The readings cover different numbers of steps."""

    kind = "unequal_windows"
    steps_a: int
    steps_b: int


@dataclass(frozen=True, eq=False)
class ProfilerStart(OfSide):
    """A step includes the profiler's start-up."""

    kind = "profiler_start"
    window_steps: int
    seconds: float


@dataclass(frozen=True, eq=False)
class WarmupAverage(OfSide):
    """The readings begin with warm-up or sanity checks."""

    kind = "warmup_average"


@dataclass(frozen=True, eq=False)
class OtherModel(OfSide):
    """The model is not the one that trained."""

    kind = "other_model"


@dataclass(frozen=True, eq=False)
class UnequalRanks(OfFigure):
    """The sides were measured on different numbers of ranks."""

    kind = "ranks"


@dataclass(frozen=True, eq=False)
class UnequalBatches(OfFigure):
    """Steps of unequal size are compared."""

    kind = "batch_sizes"
    per_step: float
    per_sample: float


@dataclass(frozen=True, eq=False)
class NoLoader(OfFigure):
    """A batch in memory needs no loader, collation and transfer."""

    kind = "no_loader"


@dataclass(frozen=True, eq=False)
class ForwardOnly(OfFigure):
    """The model returned before backward."""

    kind = "forward_only"


@dataclass(frozen=True, eq=False)
class NotWhole(OfFigure):
    """The steps are not whole, or it is not stated whether they are."""

    kind = "not_whole"


@dataclass(frozen=True, eq=False)
class ClaimDiffers(OfFigure):
    """The claimed ratio is none of those that follow from the values."""

    kind = "claim_differs"


@dataclass(frozen=True, eq=False)
class StepsLongerThanEpoch(Contradiction):
    """The steps of an epoch take longer than the epoch."""

    kind = "steps_longer_than_epoch"
    account: Account


@dataclass(frozen=True, eq=False)
class OutsideTheSteps(Contradiction):
    """The steps do not predict the ratio of the epochs."""

    kind = "outside_the_steps"
    a: Account
    b: Account
    ratio: EpochRatio


def contradictions_of(figure: Figure, training: Figure | None) -> Iterator[Contradiction]:
    """Yield what is wrong with a measurement.

    ``training`` is the figure of the steps of the real training, if any.
    """
    measurement = figure.measurement
    if measurement.sum == "nested":
        yield NestedSum(figure, _times_of_step(figure, training))
    steps_a = figure.a.reading.window_steps
    steps_b = figure.b.reading.window_steps
    if steps_a and steps_b and steps_a != steps_b:
        yield UnequalWindows(figure, steps_a, steps_b)
    for side in figure.sides:
        yield from _of_side(figure, side)
    ranks_a = figure.a.reading.ranks
    ranks_b = figure.b.reading.ranks
    if ranks_a and ranks_b and ranks_a != ranks_b:
        yield UnequalRanks(figure)
    yield from _batches(figure)
    if measurement.measured == "saved batch":
        yield NoLoader(figure)
    if measurement.measured == "loader+model" and measurement.mode != "train":
        yield ForwardOnly(figure) if measurement.mode == "forward" else NotWhole(figure)
    if _is_claim_wrong(figure):
        yield ClaimDiffers(figure)


def _times_of_step(figure: Figure, training: Figure | None) -> tuple[tuple[str, float], ...]:
    """Return how many times the time of a real step the sums per step are."""
    if training is None:
        return ()
    levels = []
    for side, real in zip(figure.sides, training.sides, strict=True):
        nested = figure.measurement.seconds_per_step(side.reading)
        if nested and real.times.step:
            levels.append((side.side.name, nested / real.times.step))
    return tuple(levels)


def _of_side(figure: Figure, side: SideReading) -> Iterator[Contradiction]:
    reading = side.reading
    if reading.startup_seconds is not None and reading.window_steps is not None:
        yield ProfilerStart(figure, side, reading.window_steps, reading.startup_seconds)
    if reading.warmup:
        yield WarmupAverage(figure, side)
    if side.is_of_other_model:
        yield OtherModel(figure, side)


def _batches(figure: Figure) -> Iterator[Contradiction]:
    samples_a = figure.a.reading.samples_per_step
    samples_b = figure.b.reading.samples_per_step
    per_step = figure.ratio("step")
    per_sample = figure.ratio("sample")
    is_unequal = samples_a and samples_b and samples_a != samples_b
    if is_unequal and figure.supports and per_step and per_sample:
        yield UnequalBatches(figure, per_step, per_sample)


def _is_claim_wrong(figure: Figure) -> bool:
    claimed = figure.measurement.claimed
    if not claimed:
        return False
    ratios = [figure.raw_ratio, *(figure.ratio(per) for per in PERS)]
    return not any(ratio and math.isclose(claimed, ratio, rel_tol=CLOSE) for ratio in ratios)
