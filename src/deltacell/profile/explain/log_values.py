"""Readings of a YAML file whose source is a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.text import seconds_text
from deltacell.profile.explain.figures import OF_TRAINING
from deltacell.profile.explain.measurements import Measurement, Measurements, Reading, Side
from deltacell.profile.logs.read import read_log
from deltacell.profile.logs.readings import Log, LogReading, Quantity
from deltacell.profile.logs.sentences import reading_sentence, settings_sentence

MOST_OF_STEP = 0.9  # the wait for the loader, in a log of the loader alone
_QUANTITIES = {"epoch seconds": Quantity.epoch, "trace sum": Quantity.self_sum}  # others: a step


class LogsOfFolder:
    """Reads each log once, by its path relative to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs: dict[Path, Log] = {}

    def read(self, name: str | Path) -> Log:
        """Return a log of this folder, or one with an absolute path."""
        path = self.folder / name
        if path not in self._logs:
            self._logs[path] = read_log(path)
        return self._logs[path]


@dataclass(frozen=True)
class LogUse:
    """A reading of a log, and the measurement that it is the value of."""

    log: Log
    reading: LogReading
    measurement: str = ""  # empty if none
    side: str = ""

    def to_json(self) -> JsonObject:
        """Return what was read as a JSON-serialisable dict."""
        reading = self.reading
        return {
            "file": str(self.log.path),
            "measurement": self.measurement or None,
            "side": self.side or None,
            "quantity": reading.quantity.value,
            "source": reading.source.value,
            "seconds": reading.steady,
            "readings": len(reading.seconds),
            "warmup": reading.warmup,
            "steps": reading.n_steps,
            "first_line": reading.first_line,
            "last_line": reading.last_line,
            "cuts": [asdict(cut) for cut in reading.cuts],
            "batch": self.log.batch,
            "ranks": self.log.ranks,
            "steps_per_epoch": self.log.steps_per_epoch,
            "sentence": reading_sentence(reading),
            "settings": settings_sentence(self.log),
        }


def fill_from_logs(content: Measurements, logs: LogsOfFolder, path: Path) -> tuple[LogUse, ...]:
    """Give readings that name a log what it says; what the file itself says stays.

    ``path`` is that of the YAML, for errors.
    """
    uses = []
    for measurement in content.measurements:
        pairs = ((measurement.a, content.a), (measurement.b, content.b))
        is_sum_from_logs = measurement.measured == "trace sum" and _are_from_logs(measurement)
        for value, side in pairs:
            if isinstance(value, Reading) and value.log is not None:
                uses.append(_fill(measurement, value, side, logs, path))
        if is_sum_from_logs:
            measurement.sum = measurement.sum or "self"
    return tuple(uses)


def _are_from_logs(measurement: Measurement) -> bool:
    """Return whether the file leaves both values to logs."""
    sides: Sequence[float | Reading] = (measurement.a, measurement.b)
    return all(
        isinstance(value, Reading) and value.log and not value.value and not value.readings
        for value in sides
    )


def _fill(
    measurement: Measurement,
    reading: Reading,
    side: Side,
    logs: LogsOfFolder,
    path: Path,
) -> LogUse:
    log = logs.read(reading.log or "")
    quantity = _QUANTITIES.get(measurement.measured, Quantity.step)
    in_log = log.reading(quantity)
    if in_log is None:
        known = sorted({known.quantity.value for known in log.readings})
        raise InputError(
            f"'{measurement.name}': {reading.log} has no '{measurement.measured}', only times of:"
            f" {', '.join(known)}",
            code="not-in-log",
            where=path,
            fix="Use another log, or write down the value.",
        )
    if measurement.measured == "loader only":
        _check_is_loader(measurement, log, in_log, path)
    if not reading.readings and len(in_log.seconds) > 1:
        reading.readings = tuple(measurement.value_of(seconds) for seconds in in_log.seconds)
    if not reading.value:
        reading.value = reading.steady or measurement.value_of(in_log.steady)
    conditions = {"batch": log.batch, "ranks": log.ranks}
    if quantity == Quantity.self_sum:
        conditions["window_steps"] = in_log.n_steps
    if measurement.measured in OF_TRAINING:
        conditions["steps_per_epoch"] = log.steps_per_epoch
    for name, value_in_log in conditions.items():
        is_written = getattr(reading, name) or getattr(measurement, name)
        if not is_written:
            setattr(reading, name, value_in_log)
    return LogUse(log, in_log, measurement.name, side.name)


def _check_is_loader(measurement: Measurement, log: Log, steps: LogReading, path: Path) -> None:
    """Raise an error if the steps of a log wait for a loader only a part of their time."""
    wait = log.reading(Quantity.loader_wait)
    if wait is None or wait.steady >= MOST_OF_STEP * steps.steady:
        return
    raise InputError(
        f"'{measurement.name}': {log.path.name} has whole steps of {seconds_text(steps.steady)}, of"
        f" which {seconds_text(wait.steady)} wait for the loader: it is not of the loader alone",
        code="not-of-the-loader",
        where=path,
        fix="Write measured: it/s, or use the log of a run without a model.",
    )
