"""The directory of a run: made once, written by one process at a time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY
from deltacell.profile import record as names
from deltacell.profile.phase_rows import PhaseSummary
from deltacell.profile.record import Attempt, RunRecord, Status, now, read_run, write_run
from deltacell.screen import Split
from deltacell.train import provenance
from deltacell.train.changes import resumed_config, write_config
from deltacell.train.config import Config

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    path
        Its directory.
    signal
        The number of the signal that stopped it, or 0.
    phases
        Where its time went; None where that was not recorded, and on ranks but the first.
    best
        The highest validation Pearson, where it was measured.
    is_first
        Whether this is the first rank.
    notices
        What a profiler did not record, and why.
    """

    path: Path
    signal: int
    phases: PhaseSummary | None = None
    best: float | None = None
    is_first: bool = True
    notices: tuple[str, ...] = ()


class RunDirectory:
    """A run that this process trains, and no other does meanwhile.

    As a context manager it lets go of the run at the end, and where the run is still ``running``
    then, an error makes it ``failed``, and anything else ``interrupted``.

    Made by `create` or `open`.
    """

    def __init__(self, record: RunRecord, lock: _Lock, *, running: bool) -> None:
        self._record = record
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
        **facts: Any,
    ) -> Self:
        """Make a run's directory, with the first attempt running.

        Parameters
        ----------
        path
            A directory that does not exist or is empty.
        config
            The resolved one.
        command
            As it was typed, in words.
        world_size
            Processes; those of the config where not given.
        split
            What the run is trained and tested on, which it keeps.
        facts
            Other fields of `RunRecord` that are known by now.
        """
        path = Path(path).absolute()
        _refuse_to_clobber(path)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove((), made)
            raise StoreError(
                f"the run's directory could not be made: {error.strerror or error}", where=path
            ) from error
        lock = _Lock(path / LOCK_FILE)
        try:
            # Another process may have been faster by a moment.
            _refuse_to_clobber(path)
        except BaseException:
            lock.release()
            raise
        try:
            started = now()
            size = config.trainer.devices * config.trainer.nodes
            size = size if world_size is None else world_size
            record = RunRecord(
                path=path,
                status=Status.running,
                name=config.name,
                mode=str(config.mode),
                seed=config.seed,
                command=tuple(command),
                started=started,
                attempts=(Attempt(started=started, world_size=size),),
                versions=provenance.versions(),
                commit=provenance.commit(),
                world_size=size,
                **facts,
            )
            write_config(path, config)
            if split is not None:
                split.save(path / names.SPLIT, overwrite=True)
            # The record comes last: with it there is a run.
            write_run(path, record)
        except BaseException:
            shutil.rmtree(path / names.SPLIT, ignore_errors=True)
            _remove([path / names.RUN_FILE, path / names.CONFIG_FILE, path / LOCK_FILE], made)
            lock.release()
            raise
        return cls(record, lock, running=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a run to go on with it; nothing of it is changed until `resume` is called."""
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
        return self._record.path

    @property
    def record(self) -> RunRecord:
        """What ``run.json`` says."""
        return self._record

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs or ran last, from 0."""
        return len(self._record.attempts) - 1

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / names.CHECKPOINTS

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / names.METRICS_FILE

    def folder(self, name: str) -> Path:
        """Return a folder of the run, made where it is not there yet."""
        folder = self.path / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder could not be made: {error.strerror or error}", where=folder
            ) from error
        return folder

    def config(self) -> Config:
        """Return the resolved config that the run was made with."""
        return resumed_config(self.path)

    def save_config(self, config: Config) -> None:
        """Write a config in place of the one there."""
        self._lock.check()
        write_config(self.path, config)

    def update(self, **changes: Any) -> None:
        """Change fields of the record, on the disk first.

        Parameters
        ----------
        changes
            Fields of `RunRecord`; status and attempts are for the methods below.
        """
        for field in ("status", "attempts", "started", "ended", "path"):
            if field in changes:
                raise TypeError(f"'{field}' of a run is not for update()")
        self._write(changes)

    def resume(self, *, from_step: int, world_size: int = 1) -> None:
        """Begin another attempt, from a step that a checkpoint was taken at.

        An attempt that never came to its end, because it was killed, becomes ``interrupted``.
        """
        if self._running:
            raise RuntimeError("an attempt at this run is running already")
        attempts = tuple(
            dataclasses.replace(one, status=Status.interrupted)
            if one.status is Status.running
            else one
            for one in self._record.attempts
        )
        began = Attempt(started=now(), from_step=from_step, world_size=world_size)
        self._write(
            {
                "status": Status.running,
                "ended": None,
                "error": None,
                "world_size": world_size,
                "attempts": (*attempts, began),
            }
        )
        self._running = True

    def finish(self, **changes: Any) -> None:
        """End the attempt: all that was asked for is done."""
        self._end(Status.finished, changes)

    def settle(self, status: Status, **changes: Any) -> None:
        """Record how an attempt ended that was killed before it could say so."""
        if self._running or self._record.status is not Status.running:
            raise RuntimeError("only what a killed attempt has left is settled")
        self._running = True
        self._end(status, changes)

    def fail(self, error: str, **changes: Any) -> None:
        """End the attempt with the message of an error."""
        self._end(Status.failed, {**changes, "error": error})

    def interrupt(self, **changes: Any) -> None:
        """End the attempt before its time, to be resumed."""
        self._end(Status.interrupted, changes)

    def close(self) -> None:
        """Let go of the run, so that another process may go on with it."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._running and self._lock.held:
                # With a disk that is full, an error that is on its way is the one to see.
                with suppress(*(() if error is None else (StoreError,))):
                    if isinstance(error, Exception):
                        self.fail(str(error) or type(error).__name__)
                    else:
                        self.interrupt()
        finally:
            self.close()

    def _end(self, status: Status, changes: dict[str, Any]) -> None:
        if not self._running:
            raise RuntimeError(f"no attempt at this run is running, so none can be {status}")
        ended = now()
        *before, current = self._record.attempts
        closed = dataclasses.replace(current, ended=ended, status=status)
        self._write({**changes, "status": status, "ended": ended, "attempts": (*before, closed)})
        self._running = False

    def _write(self, changes: dict[str, Any]) -> None:
        self._lock.check()
        changed = dataclasses.replace(self._record, **changes)
        write_run(self.path, changed)
        self._record = changed


class _Lock:
    """A file that one process at a time holds; the system takes it back however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(
                f"the run cannot be written to: {error.strerror or error}", where=path.parent
            ) from error
        self._handle: int | None = handle
        try:
            self._take(handle)
        except BaseException:
            self.release()
            raise
        _HELD.add(self)
        # Who holds it is said to others only for their convenience; the disk may be full.
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())

    @property
    def held(self) -> bool:
        """Whether it is still held, by this process."""
        return self._handle is not None

    def check(self) -> None:
        """Raise where the run was let go of."""
        if not self.held:
            raise RuntimeError(f"the run was closed: {self._path.parent}")

    def release(self) -> None:
        """Let go of it, in this process; the file stays, as another may be waiting at it."""
        handle, self._handle = self._handle, None
        _HELD.discard(self)
        if handle is not None:
            os.close(handle)

    def _take(self, handle: int) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever made it may have failed and removed it, and a lock on that keeps nobody out.
            if not (self._path.exists() and os.path.samestat(os.fstat(handle), self._path.stat())):
                raise BlockingIOError
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip()
            raise InputError(
                "another process is training into this run"
                + (f" (process {holder})" if holder.isdecimal() else ""),
                where=self._path.parent,
                fix="Wait until it is done or stop it, or train into another directory.",
            ) from None
        except OSError as error:
            # Some network file systems know no locks, and training there must still be possible.
            warnings.warn(
                f"{self._path}: the file system gives no locks ({error.strerror}); take care that "
                "only one process trains into this run",
                stacklevel=4,
            )


_HELD: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _let_go_in_a_fork() -> None:
    # A fork shares the lock: a loader's worker that outlives a killed trainer would keep it.
    for lock in list(_HELD):
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go_in_a_fork)


def _refuse_to_clobber(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError("there is a file of this name", where=path, fix="Choose another place.")
    try:
        there = sorted(entry.name for entry in path.iterdir() if entry.name != LOCK_FILE)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    if names.RUN_FILE in there:
        raise InputError(
            "there is a run here already",
            where=path,
            fix=f"Go on with it (deltacell train --resume {path}), or choose another place.",
        )
    begun = [name for name in there if not (name.startswith(".") and name.endswith(TEMPORARY))]
    if set(begun) <= {names.CONFIG_FILE, names.SPLIT} and (path / LOCK_FILE).exists():
        # The making of a run that was killed here; without a record there is no run yet.
        return
    if there:
        raise InputError(
            f"the directory is not empty; it holds '{there[0]}'",
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
