"""What one measurement says per step, sample and epoch, and which ratio it really supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deltacell.profile.explain.measurements import (
    Measured,
    Measurement,
    Measurements,
    Mode,
    Reading,
    Side,
    Unit,
)
from deltacell.profile.explain.words import ratio_text


@dataclass(frozen=True)
class Times:
    """A measurement of one side in seconds; None where it cannot be known.

    Parameters
    ----------
    step, sample, epoch
        Seconds of each. The epoch is what the samples of a real epoch would take at this rate.
    """

    step: float | None
    sample: float | None
    epoch: float | None


@dataclass(frozen=True)
class Figure:
    """One measurement, made comparable.

    Parameters
    ----------
    measurement
        As it was given.
    a, b
        Its times.
    supports
        The ratio that it really supports, B by A; None where it supports none.
    per
        What that ratio is per: ``sample``, ``step`` or ``epoch``.
    of
        What it is a ratio of, or why there is none.
    """

    measurement: Measurement
    a: Times
    b: Times
    supports: float | None
    per: str | None
    of: str

    @property
    def step_ratio(self) -> float | None:
        """Per step, B by A."""
        return _ratio(self.a.step, self.b.step)

    @property
    def sample_ratio(self) -> float | None:
        """Per sample, B by A."""
        return _ratio(self.a.sample, self.b.sample)

    @property
    def epoch_ratio(self) -> float | None:
        """Per epoch, B by A."""
        return _ratio(self.a.epoch, self.b.epoch)

    @property
    def raw_ratio(self) -> float:
        """Of the values as they were given, B by A; of rates A by B."""
        a, b = self.measurement.a.value, self.measurement.b.value
        return a / b if self.measurement.unit in (Unit.rate, Unit.per_day) else b / a

    @property
    def support_text(self) -> str:
        """What it supports, in a few words."""
        if self.supports is None:
            return f"nothing: {self.of}"
        return f"{ratio_text(self.supports)} per {self.per}, of {self.of}"

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "name": self.measurement.name,
            "measured": self.measurement.measured.value,
            "mode": None if self.measurement.mode is None else self.measurement.mode.value,
            "claimed": self.measurement.claimed,
            "a": {"step_s": self.a.step, "sample_s": self.a.sample, "epoch_s": self.a.epoch},
            "b": {"step_s": self.b.step, "sample_s": self.b.sample, "epoch_s": self.b.epoch},
            "step_ratio": self.step_ratio,
            "sample_ratio": self.sample_ratio,
            "epoch_ratio": self.epoch_ratio,
            "supports": self.supports,
            "per": self.per,
            "of": self.of,
        }


def figure(measurement: Measurement, given: Measurements) -> Figure:
    """Return what a measurement says."""
    a = _times(measurement, measurement.a, given.a)
    b = _times(measurement, measurement.b, given.b)
    made = Figure(measurement, a, b, None, None, _of(measurement, given))
    if not _is_valid(measurement):
        return made
    for per, ratio in _ratios(made):
        if ratio is not None:
            return Figure(measurement, a, b, ratio, per, made.of)
    return made


def seconds_of(measurement: Measurement, value: float) -> float:
    """Return a value of a measurement in seconds, of a step or of an epoch."""
    if measurement.unit is Unit.rate:
        return 1.0 / value
    if measurement.unit is Unit.per_day:
        return 86_400.0 / value
    return value / 1e3 if measurement.unit is Unit.milliseconds else value


def steady_value(reading: Reading) -> float:
    """Return the median of the steady readings where there are any, and the value otherwise."""
    return float(np.median(reading.steady)) if reading.readings else reading.value


def sum_per_step(measurement: Measurement, reading: Reading) -> float | None:
    """Return the seconds of a trace's sum by its steps, without the step of the start-up."""
    if reading.window_steps is None:
        return None
    seconds, steps = seconds_of(measurement, reading.value), reading.window_steps
    if reading.startup_seconds is not None:
        seconds, steps = seconds - reading.startup_seconds, steps - 1
    return seconds / steps


def _times(measurement: Measurement, reading: Reading, side: Side) -> Times:
    samples = side.samples_per_epoch
    if measurement.measured is Measured.epoch:
        epoch = seconds_of(measurement, reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    if measurement.measured is Measured.trace:
        step = None if measurement.nested is not False else sum_per_step(measurement, reading)
    elif reading.is_mean_with_warmup:
        step = seconds_of(measurement, steady_value(reading))
    else:
        step = seconds_of(measurement, reading.value)
    if step is None:
        return Times(None, None, None)
    per_step = reading.samples_per_step
    sample = step / per_step if per_step else None
    return Times(step, sample, sample * samples if sample and samples else None)


def _is_valid(measurement: Measurement) -> bool:
    if measurement.measured is Measured.trace and measurement.nested is not False:
        return False
    return not (measurement.a.is_mean_with_warmup or measurement.b.is_mean_with_warmup)


def _ratios(figure: Figure) -> list[tuple[str, float | None]]:
    if figure.measurement.measured is Measured.epoch:
        return [("epoch", figure.epoch_ratio)]
    return [("sample", figure.sample_ratio), ("step", figure.step_ratio)]


_WHAT = {
    Measured.epoch: "the wall time of an epoch, all of it",
    Measured.rate: "the training steps alone",
    Measured.step: "the training steps alone",
    Measured.trace: "self times of a trace",
    Measured.loader: "the loader alone",
    Measured.loader_and_model: "loader and model",
    Measured.saved: "the full step on a batch that is there already",
}


def _of(measurement: Measurement, given: Measurements) -> str:
    if measurement.measured is Measured.trace and measurement.nested is not False:
        return (
            "a sum of nested events is no time"
            if measurement.nested
            else "whether nested events were added up is not said"
        )
    if not _is_valid(measurement):
        return "the average is one of warm-up"
    what = _WHAT[measurement.measured]
    if measurement.measured is Measured.loader_and_model and measurement.mode is Mode.forward:
        what = "loader and forward"
    if measurement.measured is Measured.loader_and_model and measurement.mode is Mode.step:
        what = "loader, forward and backward"
    others = [
        side.name
        for side, reading in ((given.a, measurement.a), (given.b, measurement.b))
        if side.parameters and reading.parameters != side.parameters
    ]
    if others:
        what += f", with another model of {' and '.join(others)} than the one that trained"
    return what


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b / a
