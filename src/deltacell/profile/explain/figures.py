"""Measurements made comparable: times per step, per sample and per epoch, and their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deltacell.profile.explain.measurements import (
    MEASURED,
    Measurement,
    Measurements,
    Reading,
    Side,
)
from deltacell.words import listed, ratio_text

Per = Literal["step", "sample", "epoch"]
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
class SideReading:
    """A reading with the training that it is of."""

    side: Side
    reading: Reading
    times: Times
    seconds: float  # that the value in the file stands for

    @property
    def is_of_other_model(self) -> bool:
        """Whether the model has another number of parameters than the trained one."""
        return self.side.parameters not in (None, self.reading.parameters)

    @property
    def is_as_trained(self) -> bool:
        """Whether batch and model are those of the training."""
        trained = (self.side.batch, self.side.parameters)
        return trained == (self.reading.batch, self.reading.parameters)


class Figure:
    """One measurement, made comparable.

    ``supports`` is the ratio of B to A, ``per`` a step, sample or epoch, that the measurement
    supports; ``of`` is what it is a ratio of, or why there is none.
    """

    def __init__(self, measurement: Measurement, content: Measurements) -> None:
        self.measurement = measurement
        self.a = _side_reading(measurement, measurement.a, content.a)
        self.b = _side_reading(measurement, measurement.b, content.b)
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
        if self.measurement.sum == "nested":
            return "a sum over nested events is not a time"
        if any(side.reading.is_mean_with_warmup for side in self.sides):
            return "the average includes warm-up"
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

    def to_json(self) -> dict[str, Any]:
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


def _side_reading(measurement: Measurement, reading: float | Reading, side: Side) -> SideReading:
    if not isinstance(reading, Reading):
        reading = Reading(value=reading)
    times = _times(measurement, reading, side)
    return SideReading(side, reading, times, measurement.seconds(reading.value))


def _times(measurement: Measurement, reading: Reading, side: Side) -> Times:
    samples = side.samples_per_epoch
    if measurement.measured == "epoch seconds":
        epoch = measurement.seconds(reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    step = None if measurement.sum == "nested" else measurement.seconds_per_step(reading)
    if step is None or not reading.samples_per_step:
        return Times(step, None, None)
    sample = step / reading.samples_per_step
    return Times(step, sample, sample * samples if samples else None)
