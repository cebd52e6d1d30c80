"""Figures without a trace: what was measured of two trainings, in a YAML file that is checked."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.errors import InputError

LARGEST_FILE = 1 << 20


class Entry:
    """A value of a YAML file and the line it is on; nothing but plain values is made of it.

    Parameters
    ----------
    node
        As YAML's safe loader composes it.
    file
        It was read from.
    name
        What it is called in errors.
    """

    def __init__(self, node: Any, file: Path, name: str) -> None:
        self._node = node
        self.file = file
        self.name = name

    @property
    def line(self) -> int:
        """Counted from 1."""
        return int(self._node.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_null(self) -> bool:
        """Whether nothing is given."""
        return bool(self._node.tag == "tag:yaml.org,2002:null")

    def wrong(self, what: str, fix: str | None = None) -> InputError:
        """Return an error about this value."""
        return InputError(what, where=self.file, line=self.line, fix=fix)

    def keys(self, known: Sequence[str]) -> dict[str, Entry]:
        """Return the values by key; a key that is not known is an error, and so is one twice."""
        if not self.is_mapping:
            raise self.wrong(f"{self.name} is {self._shown()}; expected the keys {_or(known)}")
        found: dict[str, Entry] = {}
        for key, value in self._node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            entry = Entry(value, self.file, f"{self.name}.{name}" if self.name else name)
            line = int(key.start_mark.line) + 1
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.6)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                inside = f" in {self.name}" if self.name else ""
                raise InputError(
                    f"there is no key '{name}'{inside}{hint}",
                    where=self.file,
                    line=line,
                    fix=f"There are: {', '.join(known)}",
                )
            if name in found:
                raise InputError(f"the key '{name}' is there twice", where=self.file, line=line)
            found[name] = entry
        return found

    def items(self) -> list[Entry]:
        """Return the values of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.wrong(f"{self.name} is {self._shown()}; expected a list")
        return [
            Entry(node, self.file, f"{self.name}[{i}]") for i, node in enumerate(self._node.value)
        ]

    def text(self) -> str:
        """Return a text that is not empty."""
        value = self._scalar()
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{self.name} is {self._shown()}; expected a text")
        return value.strip()

    def one_of(self, choices: Sequence[str]) -> str:
        """Return one of these texts."""
        value = self._scalar()
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1, 0.6)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise self.wrong(
                f"{self.name} is {self._shown()}{hint}", fix=f"It is one of: {', '.join(choices)}"
            )
        return str(value)

    def positive(self) -> float:
        """Return a number above 0."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(f"{self.name} is {self._shown()}; expected a number")
        if abs(value) > 1e300 or not math.isfinite(value) or not value > 0:
            raise self.wrong(f"{self.name} is {self._shown()}; expected a number above 0")
        return float(value)

    def count(self) -> int:
        """Return a whole number above 0."""
        value = self._scalar()
        if type(value) is not int or not 0 < value < 10**15:
            raise self.wrong(f"{self.name} is {self._shown()}; expected a whole number above 0")
        return value

    def _scalar(self) -> Any:
        if not isinstance(self._node, yaml.ScalarNode):
            return None
        try:
            return yaml.safe_load(yaml.serialize(self._node))
        except (yaml.YAMLError, ValueError) as error:
            raise self.wrong(f"{self.name} cannot be read: {str(error).splitlines()[0]}") from error

    def _shown(self) -> str:
        if isinstance(self._node, yaml.ScalarNode):
            text = str(self._node.value)
            return f"'{text if len(text) <= 60 else text[:57] + '...'}'" if text else "empty"
        return "a list" if isinstance(self._node, yaml.SequenceNode) else "a mapping"


def read_yaml(path: str | os.PathLike[str]) -> Entry:
    """Read a YAML file as its topmost value, with the safe loader."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                f"this is {path.stat().st_size:,} bytes; a file of figures has at most "
                f"{LARGEST_FILE:,}",
                where=path,
                fix="A trace is explained with `deltacell explain`.",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except ValueError as error:
        raise InputError("this is not text in UTF-8", where=path) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(
            f"this is not YAML: {problem}", where=path, line=None if mark is None else mark.line + 1
        ) from error
    if node is None:
        raise InputError("this file is empty", where=path)
    return Entry(node, path, "")


def _or(words: Sequence[str]) -> str:
    return ", ".join(words)


class Measured(StrEnum):
    """What was measured."""

    epoch = "epoch seconds"
    """The wall time of an epoch of the real training."""
    rate = "it/s"
    """Steps a second of the real training."""
    step = "ms per step"
    """The wall time of a step of the real training."""
    trace = "trace sum"
    """Times of a trace's events, added up over its window."""
    loader = "loader only"
    """The loader without the model."""
    loader_and_model = "loader+model"
    """The loader and as much of the step as ``mode`` says."""
    saved = "saved batch"
    """The full step on one batch that is there already."""


class Unit(StrEnum):
    """In what a value is given."""

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


UNIT_OF = {
    Measured.epoch: Unit.seconds,
    Measured.rate: Unit.rate,
    Measured.step: Unit.milliseconds,
    Measured.trace: Unit.milliseconds,
    Measured.loader: Unit.rate,
    Measured.loader_and_model: Unit.rate,
    Measured.saved: Unit.milliseconds,
}
"""The unit where none is given."""

UNITS_OF = {
    Measured.epoch: (Unit.seconds, Unit.per_day),
    Measured.rate: (Unit.rate,),
    Measured.step: (Unit.milliseconds, Unit.seconds),
    Measured.trace: (Unit.milliseconds, Unit.seconds),
    Measured.loader: (Unit.rate, Unit.milliseconds, Unit.seconds),
    Measured.loader_and_model: (Unit.rate, Unit.milliseconds, Unit.seconds),
    Measured.saved: (Unit.milliseconds, Unit.seconds, Unit.rate),
}
"""The units that a measurement can be given in."""

MODE_OF = {
    Measured.epoch: Mode.train,
    Measured.rate: Mode.train,
    Measured.step: Mode.train,
    Measured.loader: Mode.data,
    Measured.saved: Mode.fixed,
}
"""The mode where none is given; of the others it is not known."""


@dataclass(frozen=True)
class Side:
    """One of the two trainings.

    Parameters
    ----------
    name
        Of it.
    batch, ranks, steps_per_epoch, parameters
        As it really trained; the batch is that of one process. None where it is not said.
    """

    name: str
    batch: int | None = None
    ranks: int | None = None
    steps_per_epoch: int | None = None
    parameters: int | None = None

    @property
    def samples_per_epoch(self) -> float | None:
        """Steps times batch times ranks, the last step counted as full."""
        if not self.steps_per_epoch or not self.batch or not self.ranks:
            return None
        return self.steps_per_epoch * self.batch * self.ranks


@dataclass(frozen=True)
class Reading:
    """What was measured of one side.

    Parameters
    ----------
    value
        In the unit of the measurement, as it was claimed.
    readings
        The single readings that it is an average of, in their order; warm-up included.
    batch, ranks, parameters
        At the measurement; those of the real training where nothing else is said.
    window_steps
        Steps that it covers.
    startup_seconds
        Time of the profiler's own start in it, all of it in one step.
    """

    value: float
    readings: tuple[float, ...] = ()
    batch: int | None = None
    ranks: int | None = None
    parameters: int | None = None
    window_steps: int | None = None
    startup_seconds: float | None = None

    @property
    def samples_per_step(self) -> float | None:
        """The batch of all processes together."""
        return self.batch * self.ranks if self.batch and self.ranks else None

    @property
    def warmup(self) -> int:
        """How many of the readings are warm-up.

        Readings from the beginning are, as long as they lie 1.5 times above or below the median
        of the second half, up to half of them.
        """
        half = len(self.readings) // 2
        if not half:
            return 0
        usual = float(np.median(self.readings[half:]))
        length = 0
        while length < half and not usual / 1.5 <= self.readings[length] <= 1.5 * usual:
            length += 1
        return length

    @property
    def steady(self) -> tuple[float, ...]:
        """The readings that are not warm-up."""
        return self.readings[self.warmup :]

    @property
    def is_mean_with_warmup(self) -> bool:
        """Whether the value is the average of all readings, those of the warm-up included."""
        if not self.warmup:
            return False
        mean = float(np.mean(self.readings))
        return abs(mean - self.value) <= 0.02 * self.value


@dataclass(frozen=True)
class Measurement:
    """One way in which the two were compared.

    Parameters
    ----------
    name
        Of it.
    measured
        What was.
    unit
        Of the values.
    mode
        How much of a step was carried out; None where it is not known.
    nested
        Of a trace's sum: whether durations of nested events were added up; None where it is not
        said.
    claimed
        The ratio that was said to follow, B by A.
    a, b
        The values.
    """

    name: str
    measured: Measured
    unit: Unit
    mode: Mode | None
    nested: bool | None
    claimed: float | None
    a: Reading
    b: Reading


@dataclass(frozen=True)
class Measurements:
    """All measurements of two trainings.

    Parameters
    ----------
    path
        The file they were read from.
    a, b
        The two trainings.
    measurements
        In the order of the file.
    """

    path: Path
    a: Side
    b: Side
    measurements: tuple[Measurement, ...]


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read and check a YAML file of measurements.

    ``a`` and ``b`` describe the two trainings; ``measurements`` is a list in which each entry has
    a ``name``, says what was ``measured`` and gives a value for ``a`` and for ``b``: a number, or
    keys beside ``value`` where it differs from the real training. See the how-to on slow runs.
    """
    entry = read_yaml(path)
    keys = entry.keys(("a", "b", "measurements"))
    a, b = _side(_required(entry, keys, "a")), _side(_required(entry, keys, "b"))
    if a.name == b.name:
        raise keys["b"].wrong(f"both trainings are called '{a.name}'", fix="Give them two names.")
    given = _required(entry, keys, "measurements").items()
    if not given:
        raise keys["measurements"].wrong("there are no measurements")
    found = tuple(_measurement(one, a, b) for one in given)
    names = [one.name for one in found]
    for one, name in zip(given, names, strict=True):
        if names.count(name) > 1:
            raise one.wrong(f"two measurements are called '{name}'", fix="Give them two names.")
    return Measurements(Path(path), a, b, found)


_SHARED = ("batch", "ranks", "parameters", "window_steps", "startup_seconds")
_NUMBERS = ("batch", "ranks", "parameters", "window_steps")


def _required(parent: Entry, keys: dict[str, Entry], name: str) -> Entry:
    if name not in keys or keys[name].is_null:
        inside = f" in {parent.name}" if parent.name else ""
        raise parent.wrong(f"the key '{name}' is missing{inside}")
    return keys[name]


def _side(entry: Entry) -> Side:
    keys = entry.keys(("name", "batch", "ranks", "steps_per_epoch", "parameters"))
    counts = {name: keys[name].count() for name in keys if name != "name"}
    return Side(_required(entry, keys, "name").text(), **counts)


def _measurement(entry: Entry, a: Side, b: Side) -> Measurement:
    keys = entry.keys(("name", "measured", "unit", "mode", "sum", "claimed", *_SHARED, "a", "b"))
    name = _required(entry, keys, "name").text()
    measured = Measured(_required(entry, keys, "measured").one_of([*Measured]))
    unit = UNIT_OF[measured]
    if "unit" in keys:
        unit = Unit(keys["unit"].one_of([*UNITS_OF[measured]]))
    mode = MODE_OF.get(measured)
    if "mode" in keys:
        mode = Mode(keys["mode"].one_of([*Mode]))
    nested = None
    if "sum" in keys:
        if measured is not Measured.trace:
            raise keys["sum"].wrong(f"'sum' is for a '{Measured.trace}', and this is '{measured}'")
        nested = keys["sum"].one_of(["nested", "self"]) == "nested"
    shared = _conditions(keys)
    return Measurement(
        name,
        measured,
        unit,
        mode,
        nested,
        keys["claimed"].positive() if "claimed" in keys else None,
        _reading(_required(entry, keys, "a"), shared, a, unit),
        _reading(_required(entry, keys, "b"), shared, b, unit),
    )


def _reading(entry: Entry, shared: dict[str, float], side: Side, unit: Unit) -> Reading:
    whole = {
        name: value
        for name, value in (
            ("batch", side.batch),
            ("ranks", side.ranks),
            ("parameters", side.parameters),
        )
        if value is not None
    }
    if not entry.is_mapping:
        return _made(entry.positive(), (), whole | shared, entry, unit)
    keys = entry.keys(("value", "readings", *_SHARED))
    readings: tuple[float, ...] = ()
    if "readings" in keys:
        readings = tuple(one.positive() for one in keys["readings"].items())
        if not readings:
            raise keys["readings"].wrong(f"{keys['readings'].name} is an empty list")
    value = keys["value"].positive() if "value" in keys else None
    if value is None and not readings:
        raise entry.wrong(f"{entry.name} has neither a 'value' nor 'readings'")
    if value is None:
        value = float(np.median(Reading(1.0, readings).steady))
    return _made(value, readings, whole | shared | _conditions(keys), entry, unit)


def _made(
    value: float,
    readings: tuple[float, ...],
    conditions: dict[str, float],
    entry: Entry,
    unit: Unit,
) -> Reading:
    made = Reading(
        value,
        readings,
        **{name: int(conditions[name]) for name in _NUMBERS if name in conditions},
        startup_seconds=conditions.get("startup_seconds"),
    )
    if made.startup_seconds is not None:
        _check_startup(made, entry, unit)
    return made


def _check_startup(reading: Reading, entry: Entry, unit: Unit) -> None:
    if unit is Unit.rate:
        raise entry.wrong("startup_seconds cannot be taken out of a rate", fix="Give the seconds.")
    whole = reading.value / (1e3 if unit is Unit.milliseconds else 1.0)
    if not reading.window_steps or reading.window_steps < 2:
        raise entry.wrong(
            "startup_seconds is all of one step, so it needs window_steps of 2 or more"
        )
    if reading.startup_seconds is not None and reading.startup_seconds >= whole:
        raise entry.wrong(
            f"startup_seconds is {reading.startup_seconds:g}, and all that was measured is "
            f"{whole:g} s"
        )


def _conditions(keys: dict[str, Entry]) -> dict[str, float]:
    found: dict[str, float] = {name: keys[name].count() for name in _NUMBERS if name in keys}
    if "startup_seconds" in keys:
        found["startup_seconds"] = keys["startup_seconds"].positive()
    return found
