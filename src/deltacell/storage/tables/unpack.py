"""The bytes of a source file, decompressed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from deltacell.base.errors import InputError

GZIP_START = b"\x1f\x8b"
ZIP_START = b"PK\x03\x04"

_MEMBER_OF_WORKBOOK = "[Content_Types].xml"
# The journal packs Kuzmin 2020's workbook with twelve others.
_PREFERRED_MEMBER = re.compile(r"table[-_ ]?s1\.xlsx$", re.IGNORECASE)
# Folders, and files that macOS and Excel hide in a zip.
_NO_MEMBER = re.compile(r"/$|^__MACOSX/|^(\.|~\$)|/(\.|~\$)[^/]*$")
# Tables of genes compress by a factor of 3 to 30.
_ALWAYS_UNPACKED = 64 << 20  # bytes
_LARGEST_FACTOR = 100
_PIECE = 1 << 22  # bytes that are read at once


class Content(NamedTuple):
    """The contents of a file, decompressed, and the SHA-256 of the file on disk."""

    data: bytes
    sha256: str


def open_text(path: str | os.PathLike[str]) -> Content:
    """Read a file, decompressed if it is gzip or a zip of one file.

    A file that unpacks to more than 100 times its size raises, as it may be built to fill the
    memory; 64 MB are always allowed.
    """
    path = Path(path)
    with unpacked(path) as file:
        most_bytes = max(_ALWAYS_UNPACKED, _LARGEST_FACTOR * path.stat().st_size)
        data = _read_at_most(file, most_bytes)
        if _unpacked_size(data) > most_bytes:
            message = f"the file unpacks to more than {_LARGEST_FACTOR} times its size"
            fix = "It may be built to fill the memory. If you trust it, unpack it first."
            raise InputError(message, code="decompression-bomb", where=path, fix=fix)
        with path.open("rb") as packed:
            sha256 = hashlib.file_digest(packed, "sha256").hexdigest()
    return Content(data, sha256)


def _read_at_most(file: IO[bytes], most_bytes: int) -> bytes:
    """Read a file in pieces, until its end or until there are more than `most_bytes`."""
    memory = io.BytesIO()
    while (piece := file.read(_PIECE)) and memory.tell() <= most_bytes:
        memory.write(piece)
    return memory.getvalue()


def _unpacked_size(data: bytes) -> int:
    """Return the number of bytes; for a workbook, which is a zip, those of its members."""
    if not data.startswith(ZIP_START):
        return len(data)
    with zipfile.ZipFile(io.BytesIO(data)) as workbook:
        return sum(member.file_size for member in workbook.infolist())


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; for gzip or a zip with one member, the contents. A workbook stays packed."""
    with reading(path), path.open("rb") as file:
        start = file.read(len(ZIP_START))
        file.seek(0)
        if start.startswith(GZIP_START):
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file))
        elif start == ZIP_START:
            with zipfile.ZipFile(file) as archive:
                names = [name for name in archive.namelist() if not _NO_MEMBER.search(name)]
                if _MEMBER_OF_WORKBOOK in names:
                    file.seek(0)
                    yield file
                else:
                    with archive.open(_only_member(names, path)) as member:
                        yield member
        else:
            yield file


def _only_member(names: Sequence[str], path: Path) -> str:
    """Return the member of a zip that is read: the only one, or the preferred one of several."""
    chosen = names if len(names) == 1 else [n for n in names if _PREFERRED_MEMBER.search(n)]
    if len(chosen) != 1:
        message = f"expected a zip of one file, but it contains {len(names)}"
        raise InputError(message, code="several-files", where=path, fix="Unpack it.")
    return chosen[0]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors while reading or decompressing a file to an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, code="unreadable", where=path) from error
    except Exception as error:
        # gzip, zipfile, zlib, polars and fastexcel raise their own errors for damaged files.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"the file is truncated or damaged, or cannot be unpacked ({reason})"
        fix = "Download it again, or unpack it first."
        raise InputError(message, code="unreadable", where=path, fix=fix) from error
