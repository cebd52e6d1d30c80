"""What a run records of itself: the schema of ``run.json``, and the names of the files beside it.

Whoever explains or compares runs reads them with this alone, without the package that trained.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from deltacell.errors import InputError
from deltacell.files import read_json, seal_of, write_json

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

Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class Status(StrEnum):
    """How a run, or one attempt at it, stands or ended."""

    running = "running"
    finished = "finished"
    failed = "failed"
    interrupted = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the record; fields that this version does not know are kept in ``extra``."""

    extra: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Timed(Part):
    """Something with a beginning and an end, in UTC as `now` returns it."""

    started: str
    ended: str | None = None  # None while it runs, and for good if it was killed

    def __post_init__(self) -> None:
        for time in (self.started, self.ended):
            if time is not None:
                datetime.fromisoformat(time)


@dataclass(frozen=True, kw_only=True)
class Attempt(Timed):
    """One process, or group of processes, that trained the run from its start or a checkpoint."""

    status: Status = Status.running
    from_step: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class CellFacts(Part):
    """Which cell it was."""

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
    """Genotypes in each part of the split."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Target(Part):
    """Mean and deviation of the training part, by which targets were standardised."""

    mean: Finite
    std: Finite


@dataclass(frozen=True, kw_only=True)
class Reached(Part):
    """A checkpoint: where it was taken, and the value of its metric if it is a finite number."""

    epoch: int
    step: int
    file: str
    metric: str | None = None
    value: Finite | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord(Timed):
    """What ``run.json`` holds."""

    path: Path = field(default=Path(), compare=False)  # the run's directory; not written
    status: Status
    name: str
    mode: str
    seed: int
    command: tuple[str, ...]
    attempts: tuple[Attempt, ...] = ()  # the first, and one for each time it was resumed
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    cell: CellFacts | None = None
    screen: ScreenFacts | None = None
    split: dict[str, Any] | None = None  # `Split.to_json` and its leakage sentence
    samples: Samples | None = None
    device: str | None = None
    threads: int | None = None  # of each process, on a CPU
    precision: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # of all processes together
    accumulate: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    propagation: dict[str, Any] | None = None
    micro_batch: int | None = None
    n_parameters: int | None = None
    best: Reached | None = None
    last: Reached | None = None
    error: str | None = None
    target: Target | None = None  # None where targets were not standardised
    limits: str | None = None  # the sentence that says what limits this run

    def metrics(self) -> pl.DataFrame:
        """Return ``metrics.csv``, one row per epoch; see `read_metrics`."""
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
        why = f"it has no {RUN_FILE}" if folder.exists() else "it does not exist"
        raise InputError(
            f"this is not a run directory: {why}",
            code="not-a-run",
            where=folder,
            fix="Give a directory that `deltacell train` has made.",
        )
    data = read_json(file, what="the record of the run")
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise InputError("not the record of a run: no 'schema'", code="not-a-record", where=file)
    if data["schema"] != SCHEMA_VERSION:
        raise InputError(
            f"schema version {data['schema']}; this program reads {SCHEMA_VERSION}",
            code="schema-version",
            where=file,
            fix="Read it with the version of deltacell that wrote it.",
        )
    if data.get("seal", seal := seal_of(data)) != seal:
        what = "the record of the run was edited or damaged after it was written"
        raise InputError(what, code="broken-seal", where=file, fix=_RESTORE)
    known = {name: value for name, value in data.items() if name not in ("schema", "seal")}
    try:
        record = msgspec.convert(_with_extra(RunRecord, known), RunRecord)
    except (msgspec.ValidationError, OverflowError) as error:
        what = f"the record of the run is invalid: {error}"
        raise InputError(what, code="invalid-record", where=file, fix=_RESTORE) from error
    return dataclasses.replace(record, path=folder)


def write_run(path: str | os.PathLike[str], record: RunRecord) -> None:
    """Write the record into a run's directory, whole or not at all."""
    data = {"schema": SCHEMA_VERSION, **_encoded(record)}
    data["seal"] = seal_of(data)
    write_json(Path(path) / RUN_FILE, data, what="the record of the run")


CHECK = "crc32"
"""The last column of ``metrics.csv``: a checksum of the row and of all rows before it."""


def check_of_row(row: Sequence[str], before: int) -> int:
    """Return the checksum of a row of ``metrics.csv``, given that of the row before it."""
    return zlib.crc32("\0".join(row).encode(), before)


def read_metrics(path: str | os.PathLike[str]) -> pl.DataFrame:
    """Read a ``metrics.csv``: ``epoch`` and ``step`` as integers, all else as numbers or null.

    The column ``crc32``, where there is one, is compared with the rows and not returned.
    """
    path = Path(path)

    def wrong(what: str, code: str, line: int | None = None) -> InputError:
        return InputError(what, code=code, where=path, line=line)

    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror or error}", "unreadable-file") from error
    except ValueError as error:
        raise wrong("not text in UTF-8", "not-utf-8") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    rows = [(reader.line_num, row) for row in reader if row]
    names = rows[0][1] if rows else []
    if names[:2] != ["epoch", "step"] or len(set(names)) < len(names):
        told = ", ".join(names) or "none"
        what = f"the first line has to name each column once, epoch and step first; it names {told}"
        raise wrong(what, "wrong-columns", 1)
    columns: dict[str, list[float | None]] = {name: [] for name in names if name != CHECK}
    crc = check_of_row(names[:-1], 0)
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise wrong(f"{len(row)} values for {len(names)} columns", "wrong-columns", line)
        crc = check_of_row(row[:-1], crc)
        if names[-1] == CHECK and row[-1] != str(crc):
            raise wrong("the rows were edited or damaged", "broken-seal", line)
        for name, values in columns.items():
            value = row[names.index(name)]
            try:
                if name in ("epoch", "step"):
                    values.append(int(value))
                    if abs(int(value)) >= 2**63:
                        raise ValueError
                else:
                    values.append(float(value) if value else None)
            except ValueError:
                what = f"'{value}' in the column '{name}' is not a number"
                raise wrong(what, "not-a-number", line) from None
    whole = {name: pl.Int64 if name in ("epoch", "step") else pl.Float64 for name in columns}
    return pl.DataFrame(columns, schema=whole)


def now() -> str:
    """Return the time in UTC, to the second, as the record writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_RESTORE = "Restore the file from a copy."
_NOT_WRITTEN = ("path", "extra")
_PARTS: dict[str, type[Part]] = {
    **{"cell": CellFacts, "screen": ScreenFacts, "samples": Samples, "target": Target},
    **{"best": Reached, "last": Reached, "attempts": Attempt},
}


def _written(kind: type[Part]) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if f.name not in _NOT_WRITTEN]


def _with_extra(kind: type[Part], data: Any) -> Any:
    """Return the data of a part with its unknown fields moved into ``extra``, and so within it."""
    if isinstance(data, list):
        return [_with_extra(kind, one) for one in data]
    if not isinstance(data, dict):
        return data
    known = {name: data[name] for name in _written(kind) if name in data}
    if kind is RunRecord:
        known |= {n: _with_extra(part, known[n]) for n, part in _PARTS.items() if n in known}
    return known | {"extra": {n: value for n, value in data.items() if n not in known}}


def _encoded(part: Part) -> dict[str, Any]:
    fields = {name: getattr(part, name) for name in _written(type(part))} | part.extra
    for name, value in fields.items():
        if isinstance(value, Part):
            fields[name] = _encoded(value)
        elif isinstance(value, tuple):
            fields[name] = [_encoded(one) if isinstance(one, Part) else one for one in value]
    return fields
