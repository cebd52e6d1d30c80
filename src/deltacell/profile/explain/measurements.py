"""The YAML file of two trainings and of what was measured of them."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from deltacell.base.errors import InputError, did_you_mean
from deltacell.profile.logs.warmup import n_warmup

LARGEST_FILE = 1 << 20

Unit = Literal["s", "ms", "it/s", "epochs per day"]
Mode = Literal["train", "step", "forward", "data", "fixed", "empty"]
# What can be measured: its units, the default first, the default mode, and what its ratio is of.
MEASURED: dict[str, tuple[tuple[Unit, ...], Mode | None, str]] = {
    "epoch seconds": (("s", "epochs per day"), "train", "the wall time of a whole epoch"),
    "it/s": (("it/s",), "train", "the training steps alone"),
    "ms per step": (("ms", "s"), "train", "the training steps alone"),
    "trace sum": (("ms", "s"), None, "self times of a trace"),
    "loader only": (("it/s", "ms", "s"), "data", "the loader alone"),
    "loader+model": (("it/s", "ms", "s"), None, "loader and model"),
    "saved batch": (("ms", "s", "it/s"), "fixed", "the full step on a batch in memory"),
}
_RATES = {"it/s": 1.0, "epochs per day": 86_400.0}  # seconds in which a rate counts

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<key>[^`]*)`(?: - at `(?P<place>[^`]*)`)?")
_WRONG_MEASURED = re.compile(r"`\$\.measurements\[[^`]*\]\.measured`")

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
Count = Annotated[int, msgspec.Meta(gt=0, lt=10**15)]
Name = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Conditions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a time depends on: a reading overrides its measurement, which overrides the side."""

    batch: Count | None = None  # of one process
    ranks: Count | None = None
    parameters: Count | None = None
    steps_per_epoch: Count | None = None  # of the run that was measured
    window_steps: Count | None = None  # the steps covered
    startup_seconds: Positive | None = None  # start-up of the profiler, all of it in one step

    @property
    def samples_per_step(self) -> int | None:
        """The samples of all ranks together."""
        return self.batch * self.ranks if self.batch and self.ranks else None


class Side(Conditions, forbid_unknown_fields=True, kw_only=True):
    """One of the two trainings, with its real conditions."""

    name: Name

    @property
    def samples_per_epoch(self) -> int | None:
        """Steps times batch times ranks, with the last step counted as full."""
        samples = self.samples_per_step
        return self.steps_per_epoch * samples if self.steps_per_epoch and samples else None


class Reading(Conditions, forbid_unknown_fields=True, kw_only=True):
    """What was measured of one side, with conditions that differ from the real training."""

    value: Positive = 0.0
    readings: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = ()
    log: Name | None = None  # the file that says it, relative to the folder of the YAML

    @property
    def warmup(self) -> int:
        """The number of leading readings far from the median of the second half."""
        return n_warmup(self.readings)

    @property
    def steady(self) -> float:
        """The median of the readings that are not warm-up; without readings, the value."""
        return float(np.median(self.readings[self.warmup :])) if self.readings else self.value

    @property
    def is_mean_with_warmup(self) -> bool:
        """Whether the value is the average of all readings, including warm-up.

        If there are many readings after warm-up, their median may be close to the average, too.
        """
        if self.warmup == 0 or self.value == self.steady:
            return False
        return math.isclose(np.mean(self.readings), self.value, rel_tol=0.02)


class Measurement(Conditions, forbid_unknown_fields=True, kw_only=True):
    """One comparison of the two trainings."""

    name: Name
    measured: Literal[tuple(MEASURED)]  # type: ignore[valid-type]
    a: Positive | Reading
    b: Positive | Reading
    unit: Unit | None = None
    mode: Mode | None = None
    sum: Literal["nested", "self"] | None = None
    claimed: Positive | None = None  # the ratio of B to A that people derived from it

    def seconds(self, value: float) -> float:
        """Return the seconds that a value of this unit stands for."""
        if self.unit in _RATES:
            return _RATES[self.unit] / value
        return value / 1e3 if self.unit == "ms" else value

    def value_of(self, seconds: float) -> float:
        """Return the value in this unit that stands for some seconds."""
        if self.unit in _RATES:
            return _RATES[self.unit] / seconds
        return seconds * 1e3 if self.unit == "ms" else seconds

    def seconds_per_step(self, reading: Reading) -> float | None:
        """Return the time of a step, without the step in which a profiler starts."""
        seconds = self.seconds(reading.steady if reading.is_mean_with_warmup else reading.value)
        if self.measured != "trace sum":
            return None if self.measured == "epoch seconds" else seconds
        start = reading.startup_seconds
        steps = reading.window_steps
        if steps is None:
            return None
        return seconds / steps if start is None else (seconds - start) / (steps - 1)


class Measurements(msgspec.Struct, forbid_unknown_fields=True):
    """Two trainings and all measurements, in the order of the file."""

    a: Side
    b: Side
    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(min_length=1)]


def read_yaml(path: str | os.PathLike[str]) -> bytes:
    """Return the text of a YAML file of bounded size."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise _not_measurements(error, path) from error


def decode_measurements(text: bytes | str, path: Path) -> Measurements:
    """Return the measurements of a YAML text; the how-to on slow runs describes its keys.

    What logs say is not filled in yet. Errors name the path.
    """
    try:
        content = msgspec.yaml.decode(text, type=Measurements)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _not_measurements(error, path) from error
    for measurement in content.measurements:
        units, mode, _ = MEASURED[measurement.measured]
        measurement.unit = measurement.unit or units[0]
        measurement.mode = measurement.mode or mode
    return content


def complete_measurements(content: Measurements, path: Path) -> None:
    """Give every reading its value and all conditions that are known, and check them."""
    for measurement in content.measurements:
        units = MEASURED[measurement.measured][0]
        measurement.a = _completed(measurement, measurement.a, content.a)
        measurement.b = _completed(measurement, measurement.b, content.b)
        what = _what_is_wrong(measurement, units)
        if what:
            raise InputError(
                f"'{measurement.name}': {what}",
                code="wrong-measurement",
                where=path,
            )


def _not_measurements(error: Exception, path: Path) -> InputError:
    what = _with_known_names(" ".join(str(error).split()))
    return InputError(what, code="not-measurements", where=path)


def _with_known_names(message: str) -> str:
    """Return the message of a decoder with the closest known key, or with the known values."""
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown:
        place = unknown["place"] or ""
        return message + did_you_mean(unknown["key"], _keys_at(place))
    if _WRONG_MEASURED.search(message):
        return f"{message}; expected one of: {', '.join(MEASURED)}"
    return message


def _keys_at(place: str) -> tuple[str, ...]:
    """Return the keys of the mapping at a place such as ``$.measurements[...].a``."""
    if place in ("$.a", "$.b"):
        return Side.__struct_fields__
    if place.endswith((".a", ".b")):
        return Reading.__struct_fields__
    if "measurements" in place:
        return Measurement.__struct_fields__
    return Measurements.__struct_fields__


def _completed(measurement: Measurement, value: float | Reading, side: Side) -> Reading:
    """Return a reading with its value and all conditions that are known."""
    reading = value if isinstance(value, Reading) else Reading(value=value)
    reading.value = reading.value or reading.steady
    for name in Conditions.__struct_fields__:
        known = getattr(reading, name) or getattr(measurement, name) or getattr(side, name)
        setattr(reading, name, known)
    return reading


def _what_is_wrong(measurement: Measurement, units: tuple[Unit, ...]) -> str:
    """Return what is wrong with a measurement; empty if nothing is."""
    what = ""
    if measurement.unit not in units:
        what = f"the unit is {measurement.unit}; expected {', '.join(units)}"
    if measurement.sum is not None and measurement.measured != "trace sum":
        what = "'sum' is only for a 'trace sum'"
    for reading in (measurement.a, measurement.b):
        if not isinstance(reading, Reading) or not reading.value:
            return "'a' or 'b' has neither a 'value' nor 'readings' nor a 'log'"
        start = reading.startup_seconds or 0.0
        is_short = start >= measurement.seconds(reading.value)
        if start and (measurement.unit in _RATES or (reading.window_steps or 0) < 2 or is_short):
            what = "'startup_seconds' needs a longer time, and window_steps of 2 or more"
    return what
