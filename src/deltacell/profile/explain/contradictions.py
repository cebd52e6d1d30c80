"""Why a comparison of two trainings by a measurement is invalid, as values without text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from deltacell.profile.explain.account import Account, EpochRatio
from deltacell.profile.explain.figures import OF_TRAINING, PERS, Figure, SideReading
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
class StepsLongerThanEpoch(OfSide):
    """The steps of an epoch would take longer than the epoch."""

    kind = "steps_longer_than_epoch"
    steps_s: float
    epoch_s: float


@dataclass(frozen=True, eq=False)
class LoaderLongerThanEpoch(OfSide):
    """The loader alone would take longer than the whole epoch."""

    kind = "loader_longer_than_epoch"
    steps_s: float
    epoch_s: float


@dataclass(frozen=True, eq=False)
class OtherConditions(OfSide):
    """A reading of the training is of a run that differs from it."""

    kind = "other_conditions"
    names: tuple[str, ...]  # of the conditions that differ


@dataclass(frozen=True, eq=False)
class UnexplainedRest(OfSide):
    """The steps leave much of the epoch outside them, which no reading explains."""

    kind = "unexplained_rest"
    steps_s: float
    epoch_s: float


@dataclass(frozen=True, eq=False)
class SumBelowStep(OfSide):
    """A sum over nested events is below the wall time of what it holds."""

    kind = "sum_below_step"
    sum_s: float
    other: Figure  # loader and model
    other_s: float


@dataclass(frozen=True, eq=False)
class BackwardMissing(OfSide):
    """Loader and model leave most of the training step unexplained: backward was skipped."""

    kind = "backward_missing"
    model_s: float
    left_s: float  # of the shortest time of a training step, beside the loader


@dataclass(frozen=True, eq=False)
class StepBelowForward(OfSide):
    """A full step on a saved batch takes less than the forward of the training alone."""

    kind = "step_below_forward"
    step_s: float  # per sample
    forward_s: float


@dataclass(frozen=True, eq=False)
class ExcludeEachOther(OfFigure):
    """Two measurements of the same thing have ratios that differ by more than 2x."""

    kind = "exclude_each_other"
    other: Figure


@dataclass(frozen=True, eq=False)
class OutsideTheSteps(Contradiction):
    """The steps do not predict the ratio of the epochs."""

    kind = "outside_the_steps"
    a: Account
    b: Account
    ratio: EpochRatio


def contradictions_of(figure: Figure) -> Iterator[Contradiction]:
    """Yield what is wrong with a measurement by itself and against the wall clock."""
    measurement = figure.measurement
    if figure.is_nested:
        yield NestedSum(figure, _times_of_step(figure))
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
    if not any(side.other_conditions for side in figure.sides) or not is_of_training(figure):
        yield from _batches(figure)
    if measurement.measured == "saved batch":
        yield NoLoader(figure)
    if measurement.measured == "loader+model" and measurement.mode != "train":
        yield ForwardOnly(figure) if measurement.mode == "forward" else NotWhole(figure)
    if _is_claim_wrong(figure):
        yield ClaimDiffers(figure)


def _times_of_step(figure: Figure) -> tuple[tuple[str, float], ...]:
    """Return how many times the wall time of a step the sums per step are, at least."""
    levels = []
    for side in figure.sides:
        limit = side.wall.longest_step_s
        if side.per_step and limit:
            levels.append((side.side.name, side.per_step / limit))
    return tuple(levels)


def _of_side(figure: Figure, side: SideReading) -> Iterator[Contradiction]:
    reading = side.reading
    if reading.startup_seconds is not None and reading.window_steps is not None:
        yield ProfilerStart(figure, side, reading.window_steps, reading.startup_seconds)
    if reading.warmup:
        yield WarmupAverage(figure, side)
    if side.is_of_other_model:
        yield OtherModel(figure, side)
    if is_of_training(figure) and side.other_conditions:
        yield OtherConditions(figure, side, side.other_conditions)
    else:
        yield from _against_the_epoch(figure, side)


def is_of_training(figure: Figure) -> bool:
    """Return whether a figure says that it is of the real training."""
    return figure.measurement.measured in OF_TRAINING


def _against_the_epoch(figure: Figure, side: SideReading) -> Iterator[Contradiction]:
    """Yield whether steps of this length fit into the epoch, and whether they fill it."""
    if side.per_step is None or side.wall.epoch_s is None or not side.side.steps_per_epoch:
        return
    steps_s = side.per_step * side.side.steps_per_epoch
    measured = figure.measurement.measured
    if measured == "loader only" and side.is_longer_than_epoch:
        yield LoaderLongerThanEpoch(figure, side, steps_s, side.wall.epoch_s)
    if measured not in ("it/s", "ms per step"):
        return
    if side.is_longer_than_epoch:
        yield StepsLongerThanEpoch(figure, side, steps_s, side.wall.epoch_s)
    elif side.leaves_epoch_unexplained:
        yield UnexplainedRest(figure, side, steps_s, side.wall.epoch_s)


def fills_the_epoch(figure: Figure) -> bool:
    """Return whether the steps of both sides are as long as the wall clock says.

    A side whose epoch is unknown counts as such.
    """
    is_as_trained = not any(side.other_conditions for side in figure.sides)
    return is_as_trained and not any(any(_against_the_epoch(figure, side)) for side in figure.sides)


def contradictions_between(
    figures: Sequence[Figure], parts: LoaderAndModel | None
) -> Iterator[Contradiction]:
    """Yield measurements that exclude each other; ``parts`` splits a step if it was measured."""
    for figure in figures:
        measured = figure.measurement.measured
        if parts is not None and measured == "saved batch":
            yield from _steps_below_forward(figure, parts)
        if parts is not None and figure.is_nested:
            yield from _sums_below_step(figure, parts)
    if parts is not None and parts.forward.measurement.mode in (None, "train", "step"):
        yield from missing_backward(figures, parts)
    loaders = [
        figure
        for figure in figures
        if figure.measurement.measured == "loader only" and figure.supports is not None
    ]
    for first, second in itertools.combinations(loaders, 2):
        ratio_a = first.ratio("sample")
        ratio_b = second.ratio("sample")
        if ratio_a and ratio_b and not 1 / 2 <= ratio_a / ratio_b <= 2:
            yield ExcludeEachOther(first, second)


def _steps_below_forward(figure: Figure, parts: LoaderAndModel) -> Iterator[Contradiction]:
    for index, side in enumerate(figure.sides):
        trained = parts.forward.sides[index].reading
        forward_s = parts.model_s(index) / (trained.samples_per_step or 1)
        is_smaller = (side.reading.batch or 0) <= (trained.batch or 0)
        step_s = side.times.sample
        if step_s is not None and trained.samples_per_step and is_smaller and step_s < forward_s:
            yield StepBelowForward(figure, side, step_s, forward_s)


def _sums_below_step(figure: Figure, parts: LoaderAndModel) -> Iterator[Contradiction]:
    for index, side in enumerate(figure.sides):
        other_s = parts.forward.sides[index].times.step
        if side.per_step and other_s and side.per_step < other_s:
            yield SumBelowStep(figure, side, side.per_step, parts.forward, other_s)


def missing_backward(figures: Sequence[Figure], parts: LoaderAndModel) -> Iterator[BackwardMissing]:
    """Yield the sides on which the model takes less than half of a training step's rest.

    The rest is what the shortest known time of the step leaves beside the loader. Backward usually
    takes twice as long as forward, so a full step would fill more than half of it.
    """
    for index, side in enumerate(parts.forward.sides):
        limits = [side.wall.longest_step_s]
        for figure in figures:
            other = figure.sides[index]
            if is_of_training(figure) and other.per_step and not other.other_conditions:
                limits.append(other.per_step)
        shortest = min((limit for limit in limits if limit), default=0.0)
        left_s = shortest - (parts.loader.sides[index].times.step or 0.0)
        if 0 < parts.model_s(index) < left_s / 2:
            yield BackwardMissing(parts.forward, side, parts.model_s(index), left_s)


@dataclass(frozen=True, eq=False)
class LoaderAndModel:
    """The loader alone, and loader and model, measured under the same conditions."""

    loader: Figure
    forward: Figure

    def model_s(self, index: int) -> float:
        """Return the seconds of the model in a step of side 0 or 1: a marginal cost."""
        both = self.forward.sides[index].times.step or 0.0
        return both - (self.loader.sides[index].times.step or 0.0)

    @property
    def is_as_trained(self) -> bool:
        """Whether the number of ranks is that of the training, too."""
        return not any(side.other_conditions for side in (*self.loader.sides, *self.forward.sides))


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
