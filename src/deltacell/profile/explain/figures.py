"""Measurements made comparable: times per step, per sample and per epoch, and their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deltacell.base.files import JsonObject
from deltacell.base.text import listed, ratio_text
from deltacell.profile.explain.measurements import (
    MEASURED,
    Measurement,
    Measurements,
    Reading,
    Side,
)

Per = Literal["step", "sample", "epoch"]
FILLED = 0.9  # share of an epoch that its steps fill if their time is that of the training
SLACK = 1.04  # times that differ by less than this factor are equal up to rounding
NESTED = 1.25  # a sum that exceeds the wall time by this factor counts time more than once
OF_TRAINING = ("epoch seconds", "it/s", "ms per step")  # what is measured of the real training
LIMITED_BY_STEP = ("it/s", "ms per step", "loader only")  # never longer than a whole step
PERS: tuple[Per, ...] = ("step", "sample", "epoch")


@dataclass(frozen=True)
class Times:
    """Seconds of one side; the epoch has the samples of a real one at this rate."""

    step: float | None
    sample: float | None
    epoch: float | None

    def per(self, unit: Per) -> float | None:
        """Return the time per step, sample or epoch."""
        return {"step": self.step, "sample": self.sample, "epoch": self.epoch}[unit]


@dataclass(frozen=True)
class WallClock:
    """What the wall clock says of one training."""

    side: Side
    epoch_s: float | None
    log: str | None = None  # that says it

    @property
    def longest_step_s(self) -> float | None:
        """The time of an epoch over its steps: a step with everything around it."""
        if self.epoch_s is None or not self.side.steps_per_epoch:
            return None
        return self.epoch_s / self.side.steps_per_epoch


@dataclass(frozen=True)
class SideReading:
    """A reading with the training that it is of."""

    side: Side
    reading: Reading
    times: Times
    seconds: float  # that the value in the file stands for
    wall: WallClock
    per_step: float | None  # also of a sum, which is not a time

    @property
    def is_of_other_model(self) -> bool:
        """Whether the model has another number of parameters than the trained one."""
        return self.side.parameters not in (None, self.reading.parameters)

    @property
    def is_as_trained(self) -> bool:
        """Whether batch, model and steps per epoch are those of the training."""
        return not any(name != "ranks" for name in self.other_conditions)

    @property
    def other_conditions(self) -> tuple[str, ...]:
        """The conditions in which the reading differs from the training."""
        names = ("batch", "ranks", "parameters", "steps_per_epoch")
        return tuple(
            name
            for name in names
            if getattr(self.side, name) not in (None, getattr(self.reading, name))
        )

    @property
    def leaves_epoch_unexplained(self) -> bool:
        """Whether steps of this length fill less than `FILLED` of the epoch of the training.

        If one log says both, they are of one run: the rest of the epoch lies outside its steps.
        """
        limit = self.wall.longest_step_s
        is_of_same_run = self.reading.log is not None and self.reading.log == self.wall.log
        is_comparable = not self.other_conditions and not is_of_same_run
        return bool(is_comparable and limit and self.per_step and self.per_step < FILLED * limit)

    @property
    def is_longer_than_epoch(self) -> bool:
        """Whether steps of this length do not fit into the epoch."""
        limit = self.wall.longest_step_s
        is_comparable = "batch" not in self.other_conditions
        return bool(is_comparable and limit and self.per_step and self.per_step > SLACK * limit)


class Figure:
    """One measurement, made comparable.

    ``supports`` is the ratio of B to A, ``per`` a step, sample or epoch, that the measurement
    supports; ``of`` is what it is a ratio of, or why there is none.
    """

    def __init__(self, measurement: Measurement, wall_a: WallClock, wall_b: WallClock) -> None:
        self.measurement = measurement
        self.is_nested = measurement.sum == "nested" or (
            measurement.measured == "trace sum"
            and measurement.sum is None
            and (
                _exceeds_step(measurement, measurement.a, wall_a)
                or _exceeds_step(measurement, measurement.b, wall_b)
            )
        )
        self.a = _side_reading(measurement, measurement.a, wall_a, is_nested=self.is_nested)
        self.b = _side_reading(measurement, measurement.b, wall_b, is_nested=self.is_nested)
        self.raw_ratio = self.b.seconds / self.a.seconds  # of the values in the file
        claimed = measurement.claimed
        self.claim = f"{claimed:g}x" if claimed else ratio_text(self.raw_ratio)
        self.is_as_trained = self.a.is_as_trained and self.b.is_as_trained
        refusal = self._why_no_ratio()
        self.of = refusal or self._what_of()
        self.per: Per | None = None if refusal else self._supported_per()
        self.supports = None if self.per is None else self.ratio(self.per)

    @property
    def sides(self) -> tuple[SideReading, SideReading]:
        """Both readings."""
        return self.a, self.b

    def ratio(self, per: Per) -> float | None:
        """Return the ratio of B to A, if both times are known."""
        of_a = self.a.times.per(per)
        of_b = self.b.times.per(per)
        return None if of_a is None or of_b is None else of_b / of_a

    def _why_no_ratio(self) -> str:
        if self.is_nested:
            return "a sum over nested events is not a time"
        if self.measurement.measured == "trace sum" and self.measurement.sum is None:
            return "it does not say whether it is a sum of self times (sum: self)"
        if any(side.reading.is_mean_with_warmup for side in self.sides):
            return "the average includes warm-up"
        too_long = [side.side.name for side in self.sides if side.is_longer_than_epoch]
        if too_long and self.measurement.measured in LIMITED_BY_STEP:
            return f"the steps of {listed(too_long)} would take longer than the epoch"
        unexplained = [side.side.name for side in self.sides if side.leaves_epoch_unexplained]
        if unexplained and self.measurement.measured in ("it/s", "ms per step"):
            return f"the steps of {listed(unexplained)} do not fill the epoch"
        others = [side.side.name for side in self.sides if side.other_conditions]
        if others and self.measurement.measured in OF_TRAINING:
            return f"{listed(others)} did not run as in the training"
        return ""

    def _what_of(self) -> str:
        text = MEASURED[self.measurement.measured][2]
        if self.measurement.measured == "loader+model" and self.measurement.mode is not None:
            text += f" in mode '{self.measurement.mode}'"
        others = [side.side.name for side in self.sides if side.is_of_other_model]
        if others:
            text += f", with another model of {listed(others)} than the one that trained"
        return text

    def _supported_per(self) -> Per | None:
        candidates: Sequence[Per] = ("sample", "step")
        if self.measurement.measured == "epoch seconds":
            candidates = ("epoch",)
        return next((per for per in candidates if self.ratio(per) is not None), None)

    def to_json(self) -> JsonObject:
        """Return the figure as a JSON-serialisable dict."""
        measurement = self.measurement
        result: dict[str, Any] = {
            "name": measurement.name,
            "measured": measurement.measured,
            "mode": measurement.mode,
            "claimed": measurement.claimed,
        }
        for key, side in (("a", self.a), ("b", self.b)):
            result[key] = {f"{per}_s": side.times.per(per) for per in PERS}
        for per in PERS:
            result[f"{per}_ratio"] = self.ratio(per)
        return result | {"supports": self.supports, "per": self.per, "of": self.of}


def wall_clocks(content: Measurements) -> tuple[WallClock, WallClock]:
    """Return the time of an epoch of both trainings, each from the first reading of it.

    A reading of a run with another batch, model or number of ranks or steps is not used.
    """
    walls = [WallClock(content.a, None), WallClock(content.b, None)]
    for measurement in content.measurements:
        if measurement.measured != "epoch seconds":
            continue
        pairs = ((measurement.a, content.a), (measurement.b, content.b))
        for index, (reading, side) in enumerate(pairs):
            reading = _as_reading(reading)
            times = Times(None, None, None)
            wall = WallClock(side, None)
            value_s = measurement.seconds(reading.value)
            of_side = SideReading(side, reading, times, value_s, wall, None)
            if walls[index].epoch_s is None and not of_side.other_conditions:
                walls[index] = WallClock(side, value_s, reading.log)
    return walls[0], walls[1]


def _as_reading(value: float | Reading) -> Reading:
    return value if isinstance(value, Reading) else Reading(value=value)


def _exceeds_step(measurement: Measurement, value: float | Reading, wall: WallClock) -> bool:
    """Return whether a sum per step is longer than the step with everything around it."""
    per_step = measurement.seconds_per_step(_as_reading(value))
    limit = wall.longest_step_s
    return bool(per_step and limit and per_step > NESTED * limit)


def _side_reading(
    measurement: Measurement,
    value: float | Reading,
    wall: WallClock,
    *,
    is_nested: bool,
) -> SideReading:
    reading = _as_reading(value)
    times = _times(measurement, reading, wall.side, is_nested=is_nested)
    per_step = measurement.seconds_per_step(reading)
    return SideReading(
        wall.side,
        reading,
        times,
        measurement.seconds(reading.value),
        wall,
        per_step,
    )


def _times(
    measurement: Measurement,
    reading: Reading,
    side: Side,
    *,
    is_nested: bool,
) -> Times:
    samples = side.samples_per_epoch
    if measurement.measured == "epoch seconds":
        epoch = measurement.seconds(reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    step = None if is_nested else measurement.seconds_per_step(reading)
    if step is None or not reading.samples_per_step:
        return Times(step, None, None)
    sample = step / reading.samples_per_step
    return Times(step, sample, sample * samples if samples else None)
