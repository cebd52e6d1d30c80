"""Measurements of two trainings without a trace, read from a YAML file and checked."""

from __future__ import annotations

import math
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.errors import InputError, did_you_mean

LARGEST_FILE = 1 << 20

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
Count = Annotated[int, msgspec.Meta(gt=0, lt=10**15)]
Name = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Measured(StrEnum):
    """What was measured: of the real training (epoch, rate, step), of a trace, or of a part."""

    epoch = "epoch seconds"
    rate = "it/s"
    step = "ms per step"
    trace = "trace sum"
    loader = "loader only"
    loader_and_model = "loader+model"
    saved = "saved batch"


class Unit(StrEnum):
    """The unit of a value."""

    seconds = "s"
    milliseconds = "ms"
    rate = "it/s"
    per_day = "epochs per day"


class Mode(StrEnum):
    """How much of a training step was carried out."""

    train = "train"
    step = "step"
    forward = "forward"
    data = "data"
    fixed = "fixed"
    empty = "empty"


UNITS = {
    Measured.epoch: (Unit.seconds, Unit.per_day),
    Measured.rate: (Unit.rate,),
    Measured.step: (Unit.milliseconds, Unit.seconds),
    Measured.trace: (Unit.milliseconds, Unit.seconds),
    Measured.loader: (Unit.rate, Unit.milliseconds, Unit.seconds),
    Measured.loader_and_model: (Unit.rate, Unit.milliseconds, Unit.seconds),
    Measured.saved: (Unit.milliseconds, Unit.seconds, Unit.rate),
}
"""The units that a measurement can be given in; the first is the default."""

_MODES = {
    Measured.epoch: Mode.train,
    Measured.rate: Mode.train,
    Measured.step: Mode.train,
    Measured.loader: Mode.data,
    Measured.saved: Mode.fixed,
}


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two trainings, as it really trained; ``batch`` is that of one process."""

    name: Name
    batch: Count | None = None
    ranks: Count | None = None
    steps_per_epoch: Count | None = None
    parameters: Count | None = None

    @property
    def samples_per_epoch(self) -> float | None:
        """Steps times batch times ranks, the last step counted as full."""
        if not self.steps_per_epoch or not self.batch or not self.ranks:
            return None
        return self.steps_per_epoch * self.batch * self.ranks


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one side, and where it differs from the real training.

    ``readings`` are the single readings that ``value`` is an average of, warm-up included;
    ``window_steps`` the steps covered; ``startup_seconds`` the profiler's own start, all of it in
    one step.
    """

    value: Positive = 0.0
    readings: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] | None = None
    batch: Count | None = None
    ranks: Count | None = None
    parameters: Count | None = None
    window_steps: Count | None = None
    startup_seconds: Positive | None = None

    @property
    def samples_per_step(self) -> float | None:
        """The batch of all processes together."""
        return self.batch * self.ranks if self.batch and self.ranks else None

    @property
    def warmup(self) -> int:
        """How many of the readings are warm-up.

        Leading readings are, as long as they lie 1.5 times above or below the median of the
        second half, up to half of them.
        """
        readings = self.readings or ()
        half = len(readings) // 2
        usual = float(np.median(readings[half:])) if half else 0.0
        length = 0
        while length < half and not usual / 1.5 <= readings[length] <= 1.5 * usual:
            length += 1
        return length

    @property
    def steady(self) -> tuple[float, ...]:
        """The readings that are not warm-up."""
        return (self.readings or ())[self.warmup :]

    @property
    def is_mean_with_warmup(self) -> bool:
        """Whether the value is the average of all readings, those of the warm-up included."""
        if not self.warmup:
            return False
        return abs(float(np.mean(self.readings or ())) - self.value) <= 0.02 * self.value


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which the two trainings were compared.

    ``claimed`` is the ratio B by A that was said to follow. Conditions such as ``batch`` hold for
    both sides. Once read, ``unit`` and both readings are filled in.
    """

    name: Name
    measured: Measured
    a: Positive | Reading
    b: Positive | Reading
    unit: Unit | None = None
    mode: Mode | None = None
    sum: Literal["nested", "self"] | None = None
    claimed: Positive | None = None
    batch: Count | None = None
    ranks: Count | None = None
    parameters: Count | None = None
    window_steps: Count | None = None
    startup_seconds: Positive | None = None

    @property
    def readings(self) -> tuple[Reading, Reading]:
        """The values of A and of B."""
        assert isinstance(self.a, Reading)
        assert isinstance(self.b, Reading)
        return self.a, self.b

    @property
    def is_nested_sum(self) -> bool | None:
        """Of a trace: whether durations of nested events were added up; None where unknown."""
        return None if self.sum is None else self.sum == "nested"


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All measurements of two trainings, in the order of the file."""

    a: Side
    b: Side
    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(min_length=1)]

    @property
    def sides(self) -> tuple[Side, Side]:
        """A and B."""
        return self.a, self.b


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read and check a YAML file of measurements.

    ``a`` and ``b`` describe the two trainings; ``measurements`` is a list in which each entry has
    a ``name``, says what was ``measured`` and gives a value for ``a`` and for ``b``: a number, or
    keys beside ``value`` where it differs from the real training. See the how-to on slow runs.
    """
    path = Path(path)
    try:
        given = msgspec.convert(_read_yaml(path), Measurements)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        place = place.strip("`.") or "the file"
        unknown = re.search(r"unknown field `(.*)`", what)
        keys = {*Side.__struct_fields__, *Measurement.__struct_fields__, *Reading.__struct_fields__}
        hint = did_you_mean(unknown[1], sorted(keys)) if unknown else ""
        raise InputError(f"{place}: {what}{hint}", where=path) from error
    seen = {given.a.name: "a"}
    for name, place in (
        (given.b.name, "b"),
        *((f"measurement {one.name}", one.name) for one in given.measurements),
    ):
        if name in seen:
            raise InputError(f"'{place}' and '{seen[name]}' have the same name", where=path)
        seen[name] = place
    return msgspec.structs.replace(
        given, measurements=tuple(_filled(one, given, path) for one in given.measurements)
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [str(key.value) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{twice}' is there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                f"the file is larger than {LARGEST_FILE:,} bytes",
                where=path,
                fix="A trace is explained with `deltacell explain`.",
            )
        return yaml.load(path.read_bytes().decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = None if mark is None else mark.line + 1
        raise InputError(f"not a YAML file: {problem}", where=path, line=line) from error


def _filled(one: Measurement, given: Measurements, path: Path) -> Measurement:
    def wrong(what: str) -> InputError:
        return InputError(f"'{one.name}': {what}", where=path)

    unit = one.unit or UNITS[one.measured][0]
    if unit not in UNITS[one.measured]:
        raise wrong(f"the unit is {unit}; expected one of {', '.join(UNITS[one.measured])}")
    if one.sum is not None and one.measured is not Measured.trace:
        raise wrong(f"'sum' is for a '{Measured.trace}', and this is '{one.measured}'")
    readings = []
    for side, value in zip(given.sides, (one.a, one.b), strict=True):
        reading = value if isinstance(value, Reading) else Reading(value=value)
        if not reading.value and reading.readings is None:
            raise wrong(f"{side.name} has neither a 'value' nor 'readings'")
        known = {
            name: next(
                (x for x in (getattr(o, name, None) for o in (reading, one, side)) if x), None
            )
            for name in ("batch", "ranks", "parameters", "window_steps", "startup_seconds")
        }
        number = reading.value or float(np.median(reading.steady))
        if not math.isfinite(number):
            raise wrong(f"the value of {side.name} is {number}; expected a finite number")
        made = msgspec.structs.replace(reading, value=number, **known)
        if made.startup_seconds is not None:
            whole = number / (1e3 if unit is Unit.milliseconds else 1.0)
            if unit is Unit.rate or (made.window_steps or 0) < 2 or made.startup_seconds >= whole:
                raise wrong(
                    "'startup_seconds' is one step of several: it needs a time that is longer, "
                    "and window_steps of 2 or more"
                )
        readings.append(made)
    mode = one.mode or _MODES.get(one.measured)
    return msgspec.structs.replace(one, unit=unit, mode=mode, a=readings[0], b=readings[1])
