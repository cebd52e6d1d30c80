"""Files that are written whole or not at all.

A file is written under a temporary name beside its destination, flushed to the disk and renamed, so
that a reader, or whoever comes after a kill, sees what was there before or all of what is new.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}{TEMPORARY}"
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


def write_text(path: str | os.PathLike[str], text: str, *, what: str) -> None:
    """Write a text file whole, or raise a `StoreError` that says `what` could not be written."""
    try:
        with new_file(path) as temporary:
            temporary.write_bytes(text.encode())
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


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
