"""Files that are written whole or not at all.

A file is written under a temporary name next to its destination, flushed to disk and renamed, so
that a reader sees either the old file or all of the new one, even after a kill.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

from deltacell.base.errors import InputError, StoreError

TEMPORARY = ".tmp"

JsonObject = dict[str, Any]
"""An object of JSON: its values are texts, numbers, truth values, None, and lists and objects."""


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name to fill, which becomes `path` when the block ends without an error.

    After an error `path` is unchanged and the temporary file is removed. Within a folder that this
    process has `locked`, losing the lock meanwhile is such an error; `check_locks` finds the lock
    in `_HELD`.
    """
    # Absolute, because libraries take a relative ``s3:x`` for an address, and ``~`` for a home.
    path = Path(path).absolute()
    temporary = temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        check_locks(path)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_parent(path)


def temporary_name(path: Path) -> Path:
    """Return a new hidden name next to a path, after removing what dead processes left there."""
    _remove_abandoned(path.parent, os.getpid())
    owner = f"{_machine()}-{os.getpid()}"
    return path.parent / f".{path.name}.{owner}-{secrets.token_hex(6)}{TEMPORARY}"


class Lock:
    """A lock file that this process holds, see `locked`."""

    def __init__(self, path: Path, file: IO[bytes], whose: str) -> None:
        self.path = path.absolute()
        self._file = file
        self._whose = whose

    @property
    def is_lost(self) -> bool:
        """Whether the file was removed, so that another process may have locked a new one."""
        try:
            at_path = self.path.lstat()
        except FileNotFoundError:
            return True
        locked = os.fstat(self._file.fileno())
        return not os.path.samestat(at_path, locked)

    def check(self) -> None:
        """Raise if the lock is lost; call it before every write that it protects."""
        if self.is_lost:
            message = (
                f"this process has lost the {self._whose}, as its lock file was removed or"
                " replaced; it has stopped and writes nothing more"
            )
            fix = "Another process may have resumed it. If none did, rerun the command."
            raise StoreError(message, code="lost-lock", where=self.path.parent, fix=fix)


_HELD: list[Lock] = []
"""The locks that this process holds, the newest last.

It is global because `new_file`, which nearly everything is written with, has only a path: the lock
around it was taken by a caller far above, who need not pass it through every function between them.
Only `locked` changes the list.
"""


def check_locks(path: Path) -> None:
    """Raise if this process had locked a folder around `path` and has lost the lock.

    A process can be stopped for hours while it writes a file, so this is asked again right before
    the rename that makes the file visible.
    """
    folder = path.parent.resolve()
    # If a process lost a lock and took it again, the new one counts.
    newest = {lock.path: lock for lock in _HELD}
    for lock in newest.values():
        if folder.is_relative_to(lock.path.parent.resolve()):
            lock.check()


@contextmanager
def locked(path: Path, *, whose: str) -> Iterator[Lock]:
    """Hold a lock file, which the system releases however this process ends; the file stays."""
    try:
        lock = open_no_link(path, "ab")
    except OSError as error:
        message = f"the lock cannot be written: {error.strerror or error}"
        raise StoreError(message, code="not-written", where=path) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another process is working on this {whose}"
            raise InputError(message, code="locked", where=path.parent) from None
        except OSError as error:
            # Some network file systems have no locks, and work there must be possible.
            message = f"no locks ({error.strerror}); make sure that only one process works there"
            warnings.warn(f"{path.parent}: {message}", stacklevel=5)
        held = Lock(path, lock, whose)
        _HELD.append(held)
        try:
            yield held
        finally:
            _HELD.remove(held)


def open_no_link(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing; a link, or anything else that is not a file, raises."""

    def opener(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a named pipe would wait for a reader.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    try:
        file: IO[bytes] = open(path, mode, opener=opener)  # noqa: SIM115
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_error(path) from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StoreError("not a regular file", code="not-a-file", where=path)
    return file


def link_error(path: Path) -> StoreError:
    """Return the error that a path to be written is a symbolic link."""
    message = "this is a symbolic link, which is not followed when something is written"
    fix = "Replace it by what it points to, or copy the folder without links: cp -rL OLD NEW"
    return StoreError(message, code="link", where=path, fix=fix)


def check_no_links(folder: Path) -> None:
    """Raise if anything inside a folder is a symbolic link, through which others could write."""
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(where, name)
            if path.is_symlink():
                raise link_error(path)


def seal_of(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its key ``seal``; it shows damage and edits."""
    # A reader sees what JSON makes of the keys, so they are sorted only after a round trip.
    without_seal = {key: value for key, value in data.items() if key != "seal"}
    as_read = json.loads(json.dumps(without_seal))
    text = json.dumps(as_read, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


@contextmanager
def written(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """Like `new_file`, but create the folder, and raise a `StoreError` if writing fails.

    Args:
        path: The file.
        what: The words for it in the message of the error, such as ``the figure``.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            yield temporary
    except OSError as error:
        raise StoreError(
            f"{what} could not be written: {error.strerror or error}",
            code="not-written",
            where=path,
            fix="What was there before is unchanged. Free some space or choose another place.",
        ) from error


def write_bytes(path: str | os.PathLike[str], content: bytes, *, what: str) -> None:
    """Write a file whole or not at all, see `written`."""
    with written(path, what) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], text: str, *, what: str) -> None:
    """Write a text file in UTF-8, see `written`."""
    write_bytes(path, text.encode(), what=what)


def write_json(path: str | os.PathLike[str], data: Mapping[str, Any], *, what: str) -> None:
    """Write a JSON object, see `written`; a number that JSON does not have raises."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    # A file name that is not text has no UTF-8; JSON has the same escape.
    write_bytes(path, f"{text}\n".encode("utf-8", "backslashreplace"), what=what)


def write_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a Matplotlib figure in the format of the file's suffix, PNG without one."""
    # The figure is drawn in memory because Matplotlib hides a full disk behind its own errors.
    image = io.BytesIO()
    image_format = path.suffix[1:].lower() or "png"
    figure.savefig(image, format=image_format, **options)
    write_bytes(path, image.getvalue(), what="the figure")


def read_json(path: str | os.PathLike[str], *, what: str) -> Any:
    """Read a JSON file; raise a `StoreError` if `what` is damaged or cannot be read."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(Path(path).read_bytes(), parse_constant=refuse)
    except OSError as error:
        message = f"{what} cannot be read: {error.strerror or error}"
        raise StoreError(message, code="unreadable", where=path) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{what} is damaged: not JSON", code="damaged", where=path) from error


def flush(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_parent(path: Path) -> None:
    """Flush the folder of a file; errors are ignored because the file is already in place."""
    with suppress(OSError):
        flush(path.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and directories of dead processes from a folder.

    Whoever writes into a folder does so anyway; this is for a folder that is written no more.
    """
    _remove_abandoned(folder, os.getpid())


@cache
def _remove_abandoned(folder: Path, process: int) -> None:
    """Remove the temporary files and directories of dead processes, once per writing process."""
    pattern = re.compile(rf"\..+\.{_machine()}-([0-9]+)-[0-9a-f]{{12}}{re.escape(TEMPORARY)}")
    with suppress(OSError):
        for entry in folder.iterdir():
            match = pattern.fullmatch(entry.name)
            if match is None or _is_alive(int(match[1])):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


@cache
def _machine() -> str:
    """Return a key of the namespace of process numbers: this machine, or a container on it."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    key = f"{socket.gethostname()}:{namespace}"
    return f"{zlib.crc32(key.encode()):08x}"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # It belongs to another user.
    return True
