"""Files that are written whole or not at all.

A file is written under a temporary name beside its destination, flushed to the disk and renamed, so
that a reader, or whoever comes after a kill, sees what was there before or all of what is new.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from deltacell.errors import StoreError

TEMPORARY = ".tmp"


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file's name to fill, which becomes `path` when the block ends well.

    Where it does not end well, or the disk is full, what was at `path` is still there and the
    temporary file is gone; the error is passed on.

    Parameters
    ----------
    path
        The file to make or to replace; its folder exists.
    """
    path = Path(path)
    temporary = temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # The new file is in place by now: an error here would say that it is not.
    with suppress(OSError):
        flush(path.parent)


def temporary_name(path: Path) -> Path:
    """Return a new hidden name beside a path; what dead processes left there is removed first.

    The name says which process of which machine it belongs to, so that whoever writes into the
    folder next can tell what a killed process has left from what a living one is writing.
    """
    _remove_abandoned(path.parent, os.getpid())
    owner = f"{_machine()}-{os.getpid()}"
    return path.parent / f".{path.name}.{owner}-{secrets.token_hex(6)}{TEMPORARY}"


def seal_of(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, its key ``seal`` aside.

    It shows damage and edits; it does not prove who wrote the object.
    """
    # What is sealed is what a reader will see, so it goes through JSON once before it is ordered.
    unsealed = json.loads(json.dumps({k: v for k, v in data.items() if k != "seal"}))
    text = json.dumps(unsealed, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def write_text(path: str | os.PathLike[str], text: str, *, what: str) -> None:
    """Write a text file whole, or raise a `StoreError` that says `what` could not be written."""
    write_bytes(path, text.encode(), what=what)


def write_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure of matplotlib's whole, PNG or SVG by its name.

    It is drawn in memory, because what draws it hides a full disk behind errors of its own.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower() or "png", **options)
    write_bytes(path, drawn.getvalue(), what="the figure")


def write_bytes(path: str | os.PathLike[str], content: bytes, *, what: str) -> None:
    """Write a file whole, or raise a `StoreError` that says `what` could not be written."""
    try:
        with new_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise StoreError(
            f"{what} could not be written: {error.strerror or error}",
            where=path,
            fix="What was there before is unchanged. Free some space or choose another place.",
        ) from error


def write_json(path: str | os.PathLike[str], data: Mapping[str, Any], *, what: str) -> None:
    """Write a JSON file whole, or raise a `StoreError` that says `what` could not be written."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    # A file name that is no text, as in a command, has no UTF-8; its escape is what JSON has too.
    text = text.encode("utf-8", "backslashreplace").decode()
    write_text(path, text + "\n", what=what)


def read_json(path: str | os.PathLike[str], *, what: str) -> Any:
    """Read a JSON file, or raise a `StoreError` that says `what` is damaged or cannot be read."""
    try:
        return json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise StoreError(f"{what} cannot be read: {error.strerror or error}", where=path) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{what} is damaged: this is not JSON", where=path) from error


def flush(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if os.name != "posix" and Path(path).is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _remove_abandoned(folder: Path, process: int) -> None:
    """Remove the temporary files and directories of dead processes, once per writing process."""
    with suppress(OSError):
        for entry in folder.iterdir():
            named = _TEMPORARY_NAME.fullmatch(entry.name)
            if named is None or named["machine"] != _machine() or _lives(int(named["process"])):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


_TEMPORARY_NAME = re.compile(
    r"\..+\.(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]+)-[0-9a-f]{12}" + re.escape(TEMPORARY)
)


@cache
def _machine() -> str:
    """Return a key of what process numbers are counted in: this machine, or a container of it."""
    try:
        counted_in = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        counted_in = 0
    return f"{zlib.crc32(f'{socket.gethostname()}:{counted_in}'.encode()):08x}"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
