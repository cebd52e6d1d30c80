"""What a run records of itself: the schema of ``run.json``, and the names of the files beside it.

Whoever explains or compares runs reads them with this alone, without the package that trained.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import sys
import types
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import polars as pl

from deltacell.errors import InputError
from deltacell.files import read_json, seal_of, write_json
from deltacell.words import count_text

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
SPLIT = "split"
METRICS_FILE = "metrics.csv"
CHECKPOINTS = "checkpoints"
PHASES = "phases"
TRACES = "traces"
FIGURES = "figures"
TENSORBOARD = "tensorboard"


class Status(StrEnum):
    """How a run, or one attempt at it, stands or ended."""

    running = "running"
    finished = "finished"
    failed = "failed"
    interrupted = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the record; fields that this version does not know are kept as they are."""

    extra: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Attempt(Part):
    """One process, or group of them, that trained the run: from its start or a checkpoint.

    Parameters
    ----------
    started, ended
        As `now` gives it; ``ended`` is null while it runs, and for good where it was killed.
    status
        How it stands or ended.
    from_step
        The optimizer steps that were done before it.
    world_size
        Its processes.
    """

    started: str
    ended: str | None = None
    status: Status = Status.running
    from_step: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class CellFacts(Part):
    """Which cell it was; the relations by name."""

    checksum: str
    n_genes: int
    relations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScreenFacts(Part):
    """Which screen it was, and how many genotypes of which studies."""

    checksum: str
    genotypes: int
    studies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Samples(Part):
    """Genotypes of each part of the split."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Target(Part):
    """Mean and deviation of the training part, by which targets were standardised."""

    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Reached(Part):
    """A checkpoint: where it was taken, and the value of which metric it had.

    ``value`` is null where nothing was measured there, or what was is not a finite number.
    """

    epoch: int
    step: int
    file: str
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord(Part):
    """What ``run.json`` holds.

    Parameters
    ----------
    path
        The run's directory; not written.
    status, error
        How it stands or ended, and the message where it failed.
    name, mode, seed, command
        What was asked for; the command as a list of words.
    started, ended
        As `now` gives it.
    attempts
        The first, and one for each time it was resumed.
    versions, commit
        Of the packages that matter by name, and of the checkout that deltacell was in, if any.
    cell, screen, split, samples
        What was trained on; ``split`` is what `Split.to_json` gives and its leakage sentence.
    device, threads, precision, world_size, batch_size, accumulate, steps_per_epoch, epochs
        How it ran; the batch is that of all processes together, the threads are those of each, and
        null on other devices than a CPU.
    propagation, micro_batch, n_parameters
        How mutants were propagated and why, and how large the model is.
    best, last
        The checkpoints of those names.
    target
        How targets were standardised; null where they were not.
    limits
        The sentence that says what limits this run.
    """

    path: Path = field(default=Path(), compare=False)
    status: Status
    name: str
    mode: str
    seed: int
    command: tuple[str, ...]
    started: str
    ended: str | None = None
    attempts: tuple[Attempt, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    cell: CellFacts | None = None
    screen: ScreenFacts | None = None
    split: dict[str, Any] | None = None
    samples: Samples | None = None
    device: str | None = None
    threads: int | None = None
    precision: str | None = None
    world_size: int | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    propagation: dict[str, Any] | None = None
    micro_batch: int | None = None
    n_parameters: int | None = None
    best: Reached | None = None
    last: Reached | None = None
    error: str | None = None
    target: Target | None = None
    limits: str | None = None

    def metrics(self) -> pl.DataFrame:
        """Return ``metrics.csv``, one row an epoch; see `read_metrics`."""
        return read_metrics(self.path / METRICS_FILE)

    def phases(self) -> pl.DataFrame:
        """Return the phases of every step of every rank; see `deltacell.profile.phases`."""
        from deltacell.profile.phase_rows import read_phases

        return read_phases(self.path / PHASES)


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read and check the record of a run, given its directory or its ``run.json``."""
    path = Path(path)
    folder = path.parent if path.name == RUN_FILE else path
    file = folder / RUN_FILE
    if not file.is_file():
        raise InputError(
            f"there is no {RUN_FILE} here, so this is not a run"
            if folder.exists()
            else "there is no such directory, so this is not a run",
            where=folder,
            fix="Give a directory that `deltacell train` has made.",
        )
    data = read_json(file, what="the record of the run")
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise InputError("this is not the record of a run: it has no 'schema'", where=file)
    if data["schema"] != SCHEMA_VERSION:
        raise InputError(
            f"written with schema version {data['schema']}, and this program reads "
            f"{SCHEMA_VERSION}",
            where=file,
            fix="Read it with the version of deltacell that wrote it.",
        )
    if data.get("seal", seal := seal_of(data)) != seal:
        raise InputError(
            "the record of the run is not as it was written: it was edited or damaged",
            where=file,
            fix=_RESTORE,
        )
    data = {name: value for name, value in data.items() if name not in ("schema", "seal")}
    return dataclasses.replace(_decoded(RunRecord, data, file, ""), path=folder)


def write_run(path: str | os.PathLike[str], record: RunRecord) -> None:
    """Write the record into a run's directory, whole or not at all."""
    data = {"schema": SCHEMA_VERSION, **_encoded(record, "")}
    data["seal"] = seal_of(data)
    write_json(Path(path) / RUN_FILE, data, what="the record of the run")


def read_metrics(path: str | os.PathLike[str]) -> pl.DataFrame:
    """Read a ``metrics.csv``: ``epoch`` and ``step`` as integers, all else as numbers or null.

    The column ``crc32``, where there is one, is compared with the rows and not returned.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except ValueError as error:
        raise InputError("this is not text in UTF-8", where=path) from error
    reader = csv.reader(io.StringIO(text, newline=""))
    rows = [(reader.line_num, row) for row in reader if row]
    names = rows[0][1] if rows else []
    if names[:2] != ["epoch", "step"] or len(set(names)) < len(names):
        raise InputError(
            "the first line has to name the columns, each once, 'epoch' and 'step' first; "
            f"it names {', '.join(names) or 'none'}",
            where=path,
            line=1,
        )
    columns: dict[str, list[float | None]] = {name: [] for name in names if name != CHECK}
    crc = check_of_row(names[:-1], 0)
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise InputError(
                f"{count_text(len(row), 'value')} where there are {len(names)} columns",
                where=path,
                line=number,
            )
        crc = check_of_row(row[:-1], crc)
        if names[-1] == CHECK and row[-1] != str(crc):
            raise InputError(
                "the rows are not as they were written: the file was edited or damaged",
                where=path,
                line=number,
            )
        for name, text in zip(names, row, strict=True):
            if name != CHECK:
                columns[name].append(_number(name, text, path, number))
    whole = {name: pl.Int64 if name in ("epoch", "step") else pl.Float64 for name in columns}
    return pl.DataFrame(columns, schema=whole)


def check_of_row(row: Sequence[str], before: int) -> int:
    """Return the checksum of a row of ``metrics.csv``, given that of the row before it."""
    return zlib.crc32("\0".join(row).encode(), before)


CHECK = "crc32"
"""The last column of ``metrics.csv``: a checksum of the row and of all rows before it."""


def now() -> str:
    """Return the time in UTC, to the second, as the record writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


P = TypeVar("P", bound=Part)

_NOT_WRITTEN = ("path", "extra")
_TIMES = ("started", "ended")


def _number(name: str, text: str, path: Path, line: int) -> float | None:
    try:
        if name not in ("epoch", "step"):
            return float(text) if text else None
        whole = int(text)
        if abs(whole) < 2**63:
            return whole
    except ValueError:
        pass
    raise InputError(f"'{text}' in the column '{name}' is not a number", where=path, line=line)


def _encoded(part: Part, where: str) -> dict[str, Any]:
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    kept = {name: value for name, value in fields.items() if name not in _NOT_WRITTEN}
    return {name: _plain(value, f"{where}{name}") for name, value in (kept | part.extra).items()}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Part):
        return _encoded(value, f"{where}.")
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{where}[{place}]") for place, inner in enumerate(value)]
    if isinstance(value, StrEnum):
        return value.value
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"'{where}' of a run's record cannot be a {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"'{where}' of a run's record is {value}; give a finite number or None")
    return value


def _decoded(kind: type[P], data: Any, file: Path, where: str) -> P:
    if not isinstance(data, dict):
        raise _wrong(where.rstrip("."), data, "an object", file)
    hints = get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind) if f.name not in _NOT_WRITTEN}
    values: dict[str, Any] = {"extra": {n: v for n, v in data.items() if n not in known}}
    for name, described in known.items():
        if name in data:
            values[name] = _checked(hints[name], data[name], file, f"{where}{name}")
            if name in _TIMES and values[name] is not None:
                _check_time(values[name], file, f"{where}{name}")
        elif (
            described.default is dataclasses.MISSING
            and described.default_factory is dataclasses.MISSING
        ):
            raise InputError(f"the field '{where}{name}' is missing", where=file, fix=_RESTORE)
    return kind(**values)


def _checked(hint: Any, value: Any, file: Path, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _checked(inner[0], value, file, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list", file)
        return tuple(
            _checked(inner[0], one, file, f"{where}[{place}]") for place, one in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object", file)
        return {key: _checked(inner[1], one, file, f"{where}.{key}") for key, one in value.items()}
    if hint is Any:
        return value
    if issubclass(hint, Part):
        return _decoded(hint, value, file, f"{where}.")
    if issubclass(hint, StrEnum):
        if value not in list(hint):
            raise _wrong(where, value, f"one of {', '.join(hint)}", file)
        return hint(value)
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise _wrong(where, value, _SAID[hint], file)
    return value


_SAID = {str: "text", int: "a whole number", float: "a number"}
_RESTORE = "Restore the file from a copy."


def _wrong(where: str, value: Any, expected: str, file: Path) -> InputError:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return InputError(f"the field '{where}' is {shown}; expected {expected}", where=file)


def _check_time(text: str, file: Path, where: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(where, text, "a time such as 2026-01-31T12:00:00Z", file) from None
