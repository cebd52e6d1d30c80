"""The directory of a run: its lock, record, sealed config and metrics.

It is made once, and written by one process at a time.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, write_text
from deltacell.profile.phase_rows import PhaseSummary
from deltacell.profile.record import (
    CHECK,
    CHECKPOINTS,
    CONFIG_FILE,
    RUN_FILE,
    SPLIT,
    Attempt,
    RunRecord,
    Status,
    check_of_row,
    now,
    read_metrics,
    read_run,
    write_run,
)
from deltacell.screen import Split
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import from_yaml, to_dict, to_yaml
from deltacell.train.config import Config, is_fitted

if TYPE_CHECKING:
    from deltacell.train.data import TrainingData

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"

PACKAGES = (
    *("deltacell", "torch", "lightning", "lightgbm", "torch-geometric"),
    *("numpy", "polars", "pyarrow"),
)
"""What results may depend on; the record of a run has their versions."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    path: Path
    signal: int  # the number of the signal that stopped it, or 0
    phases: PhaseSummary | None = None  # None if not recorded, and on ranks other than 0
    best: float | None = None  # the highest validation Pearson
    is_first: bool = True  # whether this is rank 0
    notices: tuple[str, ...] = ()  # what a profiler did not record, and why


def new_path(config: Config) -> Path:
    """Return the directory of a new run: the config's, or one made of name, seed and time."""
    if config.directory is not None:
        return Path(config.directory)
    stem = Path("runs") / f"{config.name}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    path, n = stem, 1
    while path.exists():
        n += 1
        path = stem.with_name(f"{stem.name}-{n}")
    return path


class RunDirectory:
    """A run that this process trains, and no other does meanwhile; see `create` and `open`.

    As a context manager it releases the run at the end. If the run is still ``running`` then, an
    error makes it ``failed``, and anything else ``interrupted``.
    """

    def __init__(self, record: RunRecord, lock: _Lock, *, running: bool) -> None:
        self.record = record
        self._lock = lock
        self._running = running

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Config,
        command: Sequence[str] = (),
        *,
        world_size: int | None = None,
        split: Split | None = None,
    ) -> Self:
        """Make a run directory where there is none, with the first attempt running."""
        path = Path(path).absolute()
        _refuse_to_clobber(path)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove((), made)
            what = f"the run directory could not be made: {error.strerror or error}"
            raise StoreError(what, code="not-written", where=path) from error
        lock = _Lock(path / LOCK_FILE)
        try:
            # Another process may have been faster by a moment.
            _refuse_to_clobber(path)
        except BaseException:
            lock.release()
            raise
        try:
            started = now()
            size = config.ranks if world_size is None else world_size
            record = RunRecord(
                path=path,
                status=Status.running,
                name=config.name,
                mode=str(config.mode),
                seed=config.seed,
                command=tuple(command),
                started=started,
                attempts=(Attempt(started=started, world_size=size),),
                versions={"python": platform.python_version()}
                | {name: metadata.version(name) for name in PACKAGES},
                commit=commit(),
                world_size=size,
            )
            write_config(path, config)
            if split is not None:
                split.save(path / SPLIT, overwrite=True)
            # The record comes last: with it there is a run.
            write_run(path, record)
        except BaseException:
            shutil.rmtree(path / SPLIT, ignore_errors=True)
            _remove([path / RUN_FILE, path / CONFIG_FILE, path / LOCK_FILE], made)
            lock.release()
            raise
        return cls(record, lock, running=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a run to resume it; nothing of it changes until `resume` is called."""
        path = Path(path).absolute()
        read_run(path)
        lock = _Lock(path / LOCK_FILE)
        try:
            return cls(read_run(path), lock, running=False)
        except BaseException:
            lock.release()
            raise

    @property
    def path(self) -> Path:
        """The directory."""
        return self.record.path

    @property
    def attempt(self) -> int:
        """The number of the last attempt, counted from 0."""
        return len(self.record.attempts) - 1

    def save_config(self, config: Config) -> None:
        """Replace the config."""
        self._lock.check()
        write_config(self.path, config)

    def update(self, **changes: Any) -> None:
        """Change fields of the record, on the disk first."""
        self._lock.check()
        changed = dataclasses.replace(self.record, **changes)
        write_run(self.path, changed)
        self.record = changed

    def resume(self, *, from_step: int, world_size: int = 1) -> None:
        """Begin another attempt; one that was killed becomes ``interrupted``."""
        assert not self._running
        attempts = tuple(
            dataclasses.replace(one, status=Status.interrupted)
            if one.status is Status.running
            else one
            for one in self.record.attempts
        )
        began = Attempt(started=now(), from_step=from_step, world_size=world_size)
        self.update(
            status=Status.running,
            ended=None,
            error=None,
            world_size=world_size,
            attempts=(*attempts, began),
        )
        self._running = True

    def end(self, status: Status, **changes: Any) -> None:
        """End the attempt that runs, or one that was killed before it could say how it ended."""
        if self.record.status is not Status.running:
            raise RuntimeError("no attempt at this run is running")
        ended = now()
        *before, current = self.record.attempts
        closed = dataclasses.replace(current, ended=ended, status=status)
        self.update(**changes, status=status, ended=ended, attempts=(*before, closed))
        self._running = False

    def close(self) -> None:
        """Release the run, so that another process may resume it."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self._running and self._lock.held:
                # If the disk is full too, the error that is being raised is the one to see.
                with suppress(*(() if error is None else (StoreError,))):
                    if isinstance(error, Exception):
                        self.end(Status.failed, error=str(error) or type(error).__name__)
                    else:
                        self.end(Status.interrupted)
        finally:
            self.close()


class _Lock:
    """A file that one process at a time holds; the system releases it however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            what = f"the run cannot be written to: {error.strerror or error}"
            raise StoreError(what, code="not-written", where=path.parent) from error
        self._handle: int | None = handle
        try:
            self._take(handle)
        except BaseException:
            self.release()
            raise
        _HELD.add(self)
        # Who holds it is only for the message of others; the disk may be full.
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())

    @property
    def held(self) -> bool:
        return self._handle is not None

    def check(self) -> None:
        if not self.held:
            raise RuntimeError(f"the run was closed: {self._path.parent}")

    def release(self) -> None:
        """Release it in this process; the file stays, as another may be waiting at it."""
        handle, self._handle = self._handle, None
        _HELD.discard(self)
        if handle is not None:
            os.close(handle)

    def _take(self, handle: int) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever made the file may have failed and removed it; then it locks nobody out.
            if not (self._path.exists() and os.path.samestat(os.fstat(handle), self._path.stat())):
                raise BlockingIOError
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip()
            raise InputError(
                "another process is training into this run"
                + (f" (process {holder})" if holder.isdecimal() else ""),
                code="run-in-use",
                where=self._path.parent,
                fix="Wait for it or stop it, or train into another directory.",
            ) from None
        except OSError as error:
            # Some network file systems have no locks, and training there must be possible.
            warnings.warn(
                f"{self._path}: the file system has no locks ({error.strerror}); make sure that "
                "only one process trains into this run",
                stacklevel=4,
            )


_HELD: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _release_in_a_fork() -> None:
    # A fork shares the lock: a loader's worker that outlives a killed trainer would keep it.
    for lock in list(_HELD):
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_in_a_fork)


def _refuse_to_clobber(path: Path) -> None:
    if not path.exists():
        return
    try:
        there = sorted(entry.name for entry in path.iterdir() if entry.name != LOCK_FILE)
    except OSError as error:
        what = f"cannot hold a run: {error.strerror or error}"
        raise InputError(what, code="not-a-directory", where=path) from error
    if RUN_FILE in there:
        raise InputError(
            "there is already a run in this directory",
            code="run-exists",
            where=path,
            fix=f"Resume it (deltacell train --resume {path}), or choose another directory.",
        )
    begun = {name for name in there if not (name.startswith(".") and name.endswith(TEMPORARY))}
    if begun <= {CONFIG_FILE, SPLIT} and (path / LOCK_FILE).exists():
        # The making of a run was killed here; without a record there is no run yet.
        return
    if there:
        raise InputError(
            f"the directory is not empty; it contains '{there[0]}'",
            code="not-empty",
            where=path,
            fix="Choose an empty or a new directory.",
        )


def _remove(files: Sequence[Path], folders: Sequence[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def commit(folder: Path | None = None) -> str | None:
    """Return the commit of the checkout that deltacell runs from, with ``-dirty`` if changed."""
    folder = Path(__file__).resolve().parents[1] if folder is None else folder
    described = None
    with suppress(OSError, subprocess.SubprocessError):
        for words in (
            # A package that is installed below another project's checkout is not part of it.
            ["ls-files", "--error-unmatch", "__init__.py"],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            described = subprocess.run(
                ["git", "-C", str(folder), *words],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout.strip()
        return described
    return None


# The config of a run, and what its checkpoints mean.

MAY_CHANGE = (
    "trainer.epochs",
    "trainer.devices",
    "trainer.nodes",
    "trainer.accelerator",
    "trainer.threads",
    "trainer.patience",
    "trainer.progress",
    "trainer.keep",
    "trainer.checkpoint_every_steps",
    "trainer.checkpoint_every_minutes",
    "trainer.figures_every",
    "loggers.",
    "profiler.",
)
"""Keys, or beginnings of them, that do not change what is learned from the same steps."""

PLACES = ("directory", "data.folder", "data.cell", "data.screen")
"""Keys that say where things are; what is there is compared by its checksum."""

MEANING = "run"
"""The key of a checkpoint's state that holds its `meaning`."""

_SEAL, _NO_SEAL = "# seal: ", "none"
_ABOUT_SEAL = (
    "# The seal shows damage and edits. Where the data have moved, change data.folder above and "
    f"write '{_NO_SEAL}' for the seal.\n"
)


def resumed_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Return the config of a run, with overrides of what may change, such as trainer.epochs=20."""
    config = read_config(read_run(path).path)
    for override in overrides:
        if "=" not in override or not _may_change(override.partition("=")[0]):
            raise InputError(
                f"'{override}' cannot be changed when a run is resumed",
                code="cannot-change",
                fix=f"Start a new run. What can be changed is {', '.join(MAY_CHANGE)}.",
            )
    try:
        schema = OmegaConf.structured(config)
        merged = OmegaConf.merge(schema, OmegaConf.from_dotlist(list(overrides)))
        return from_yaml(to_yaml(cast(Config, OmegaConf.to_object(cast(DictConfig, merged)))))
    except (OmegaConfBaseException, YAMLError) as error:
        what = f"{' '.join(overrides)}: {str(error).splitlines()[0]}"
        raise InputError(what, code="invalid-config") from error


def write_config(path: Path, config: Config) -> None:
    """Write the config of a run, with a seal that shows damage and edits."""
    text = to_yaml(config)
    sealed = f"{text}{_ABOUT_SEAL}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"
    write_text(path / CONFIG_FILE, sealed, what="the config of the run")


def read_config(path: Path) -> Config:
    """Return the config of a run, from its file or, if that was deleted, its last checkpoint."""
    file = path / CONFIG_FILE
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError as error:
        checkpoints = Checkpoints(path / CHECKPOINTS)
        if checkpoints.last is None:
            what = f"cannot be read: {error.strerror}"
            raise InputError(what, code="no-config", where=file) from error
        kept = checkpoints.load().get(MEANING, {})
        return from_yaml(str(kept.get("config", "")), where=file)
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise InputError(what, code="unreadable-config", where=file) from error
    except ValueError:
        text = ""
    above, found, seal = text.rpartition(f"\n{_SEAL}")
    above = above.rpartition("\n")[0] + "\n"
    if not found or seal.strip() not in (_NO_SEAL, hashlib.sha256(above.encode()).hexdigest()):
        raise StoreError(
            "the config was edited or damaged",
            code="broken-seal",
            where=file,
            fix="Delete the file, and the config is taken from the last checkpoint. Give what may "
            "change to the command: deltacell train --resume RUN trainer.epochs=20",
        )
    return from_yaml(above, where=file)


def meaning(config: Config, data: TrainingData) -> dict[str, str]:
    """Return what a checkpoint keeps with its weights: what they were trained with and on."""
    return {
        "config": to_yaml(config),
        "cell": data.cell.checksum,
        "screen": data.screen.checksum,
        "split": data.split.checksum,
    }


def check_meaning(state: Mapping[str, Any], config: Config, data: TrainingData, path: Path) -> None:
    """Raise if a checkpoint was not trained with this config on these data."""
    kept = state.get(MEANING)
    if not isinstance(kept, dict) or not kept.keys() >= {"config", "cell", "screen", "split"}:
        raise StoreError(
            "the checkpoint does not say what it was trained with",
            code="other-meaning",
            where=path,
            fix="Train the run again; an earlier version wrote it.",
        )
    was, now_ = _flat(to_dict(from_yaml(kept["config"], where=path))), _flat(to_dict(config))
    for key in sorted(was.keys() | now_.keys()):
        if was.get(key) != now_.get(key) and not (_may_change(key) or key in PLACES):
            raise StoreError(
                f"{key} is {now_.get(key)!r}, but the checkpoint was trained with {was.get(key)!r}",
                code="other-config",
                where=path / CONFIG_FILE,
                fix="Delete the file, and the config of the checkpoint is used.",
                key=key,
            )
    for what, found in meaning(config, data).items():
        if what != "config" and found != kept[what]:
            raise StoreError(
                f"the {what} has the checksum {found[:12]}, but the checkpoint was trained on "
                f"{kept[what][:12]}",
                code=f"other-{what}",
                where=path,
                fix=f"Restore the {what}, or train a new run.",
            )


def is_complete(state: Mapping[str, Any], config: Config) -> bool:
    """Return whether the state of a last checkpoint is that of a training's end."""
    if is_fitted(config.model):
        return True
    position, trainer = state["position"], config.trainer
    enough = trainer.patience is not None and position["waited"] >= trainer.patience
    return bool(position["epoch"] >= trainer.epochs or enough)


def _may_change(key: str) -> bool:
    return any(key.startswith(may) if may.endswith(".") else key == may for may in MAY_CHANGE)


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        inner = isinstance(value, Mapping)
        found |= _flat(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return found


COLUMNS = (
    *("epoch", "step", "seconds", "samples_per_s", "lr", "train_loss"),
    *("validation_loss", "validation_pearson", "validation_spearman", "validation_mse"),
)


class MetricsFile:
    """``metrics.csv`` with one row per epoch, written anew and whole with every row.

    Columns are `COLUMNS`, then others as they come up; the last one, ``crc32``, shows damage.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, float | None]] = []
        if not self.path.exists():
            return
        try:
            self.rows = read_metrics(self.path).to_dicts()
            with self.path.open("rb") as file:
                if not file.readline().rstrip().endswith(f",{CHECK}".encode()):
                    raise InputError(f"there is no column '{CHECK}'", where=self.path, line=1)
        except InputError as error:
            raise InputError(
                error.what,
                code="damaged-metrics",
                where=error.where,
                line=error.line,
                fix="Repair the file, or move it away to begin a new one.",
            ) from error

    def append(self, row: Mapping[str, float | None]) -> None:
        """Add a row, whose ``step`` is greater than that of the last.

        A row of the same epoch and step replaces the last: that end of an epoch was repeated,
        because a run was stopped just before it and killed just after.
        """
        before = self.rows
        if before and all(before[-1][name] == row[name] for name in ("epoch", "step")):
            before = before[:-1]
        if before and _step(row) <= _step(before[-1]):
            raise ValueError(f"a row of step {row['step']} after step {before[-1]['step']}")
        self._write([*before, dict(row)])

    def truncate_after(self, step: int) -> None:
        """Drop the rows of later steps, which a resumed run makes again."""
        kept = [row for row in self.rows if _step(row) <= step]
        if len(kept) < len(self.rows):
            self._write(kept)

    def _write(self, rows: list[dict[str, float | None]]) -> None:
        names = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, CHECK])
        crc = check_of_row(names, 0)
        for row in rows:
            written = [_written(row.get(name)) for name in names]
            crc = check_of_row(written, crc)
            writer.writerow([*written, crc])
        write_text(self.path, text.getvalue(), what="the metrics")
        self.rows = rows


def _step(row: Mapping[str, float | None]) -> int:
    return cast(int, row["step"])


def _written(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if type(value) is int else repr(float(value))
