"""Reading delimited text, plain or compressed, so that every complaint can name a line."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyarrow import csv

from deltacell.arrays import Ints
from deltacell.errors import InputError

#: What a field without a value may hold.
ABSENT = ("", "NA")

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_IS_WORKBOOK = "[Content_Types].xml"


@dataclass(frozen=True)
class Text:
    """The unpacked bytes of a file.

    Parameters
    ----------
    path
        Where it was read.
    sha256
        Checksum of the file as it lies on disk.
    data
        Its contents; for a zip, those of its only member.
    """

    path: Path
    sha256: str
    data: bytes

    @property
    def is_spreadsheet(self) -> bool:
        """Whether the contents are an xlsx workbook."""
        return self.data.startswith(_ZIP)


@dataclass(frozen=True)
class Table:
    """Columns of strings, with the line that each row came from.

    Parameters
    ----------
    frame
        All columns as they are written.
    path
        The file.
    lines
        Line number of each row, from 1.
    sha256
        Checksum of the file.
    """

    frame: pl.DataFrame
    path: Path
    lines: Ints
    sha256: str

    def __len__(self) -> int:
        return self.frame.height

    def strings(self, column: str) -> pl.Series:
        """Return a column as it is written."""
        return self.frame[column]

    def floats(self, column: str, *, missing: bool = False) -> npt.NDArray[np.float64]:
        """Return a column as numbers; what is not one is an error with its line.

        Parameters
        ----------
        column
            Its name.
        missing
            Whether an empty field, ``NA`` or ``NaN`` may stand for a missing number.
        """
        written = self.frame[column].str.strip_chars()
        numbers = written.cast(pl.Float64, strict=False).to_numpy().astype(np.float64, copy=True)
        bad = ~np.isfinite(numbers)
        if missing:
            absent = written.str.to_lowercase().is_in(["", "na", "nan"]).to_numpy()
            numbers[absent] = np.nan
            bad &= ~absent
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"column '{column}': {written[row]!r} is not a finite number",
                where=self.path,
                line=int(self.lines[row]),
            )
        return numbers

    def error(self, row: int, what: str, fix: str | None = None) -> InputError:
        """Return an error that names the line of a row."""
        return InputError(what, where=self.path, line=int(self.lines[row]), fix=fix)


def open_text(path: str | os.PathLike[str]) -> Text:
    """Read a file whole: plain, gzip, or a zip with one member; told by content, not by name."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path) from error
    return Text(path, hashlib.sha256(raw).hexdigest(), _unpack(raw, path))


def peek(path: str | os.PathLike[str], lines: int = 20) -> list[str]:
    """Return the first lines of a file, unpacking of a gzip no more than that takes."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic.startswith(_GZIP):
                head = gzip.GzipFile(fileobj=file).read(64 * 1024)
            elif magic == _ZIP:
                head = _unpack(file.read(), path)[: 64 * 1024]
            else:
                head = file.read(64 * 1024)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _cut_off(error, path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path) from error
    return head.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines()[:lines]


def holds_several_files(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a zip of several files, such as an npz; a workbook is one file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
    except (zipfile.BadZipFile, OSError):
        return False
    return len(members) > 1 and _IS_WORKBOOK not in members


def read_table(
    path: str | os.PathLike[str] | Text,
    *,
    separator: str = "\t",
    columns: Sequence[str] | None = None,
    required: Sequence[str] = (),
) -> Table:
    """Read delimited text into columns of strings.

    Parameters
    ----------
    path
        The file, or its contents already read.
    separator
        One character.
    columns
        Names for the columns of a file without a header. None: the first line is the header.
    required
        Names that the header must have.
    """
    text = path if isinstance(path, Text) else open_text(path)
    data = text.data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    _check_utf8(data, text.path)
    data, lines = _without_blank_lines(data)
    if not len(lines):
        raise InputError("the file is empty", where=text.path)
    has_header = columns is None
    if columns is None:
        header = data.split(b"\n", 1)[0].decode().split(separator)
        columns = [name.strip() for name in header]
        absent = [name for name in required if name not in columns]
        if absent:
            raise InputError(
                f"the header lacks {_listed(absent)}; it has {_listed(columns)}",
                where=text.path,
                line=int(lines[0]),
            )
        if len(set(columns)) != len(columns):
            twice = next(name for i, name in enumerate(columns) if name in columns[:i])
            raise InputError(
                f"the column name '{twice}' stands twice in the header",
                where=text.path,
                line=int(lines[0]),
            )
    _check_widths(data, separator, len(columns), lines, text.path)
    try:
        parsed = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=list(columns), skip_rows=int(has_header)),
            csv.ParseOptions(delimiter=separator, quote_char=False),
            csv.ConvertOptions(
                column_types={name: pa.string() for name in columns}, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise InputError(f"not a table of text: {error}", where=text.path) from error
    frame = pl.from_arrow(parsed)
    assert isinstance(frame, pl.DataFrame)
    return Table(frame, text.path, lines[1:] if has_header else lines, text.sha256)


def _unpack(raw: bytes, path: Path) -> bytes:
    if raw.startswith(_GZIP):
        try:
            return gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise _cut_off(error, path) from error
    if raw.startswith(_ZIP):
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                members = _members(archive)
                if _IS_WORKBOOK in members:
                    return raw
                if len(members) != 1:
                    raise InputError(
                        f"the zip file holds {len(members)} files, and one was expected: "
                        f"{_listed(members)}",
                        where=path,
                        fix="Unpack it and name the file you mean.",
                    )
                return archive.read(members[0])
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(f"the zip file is damaged ({error})", where=path) from error
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"the zip file cannot be unpacked ({error})", where=path, fix="Unpack it first."
            ) from error
    return raw


def _members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the files in a zip, without folders and what macOS adds."""
    names = archive.namelist()
    return [n for n in names if not n.endswith("/") and not n.startswith("__MACOSX/")]


def _cut_off(error: Exception, path: Path) -> InputError:
    return InputError(
        f"the gzip file is cut off or damaged ({error})",
        where=path,
        fix="Fetch it again and compare its size with the original's.",
    )


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _check_utf8(data: bytes, path: Path) -> None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 text",
            where=path,
            line=data.count(b"\n", 0, error.start) + 1,
        ) from error


def _without_blank_lines(data: bytes) -> tuple[bytes, Ints]:
    """Return the text without its blank lines, and the number of each line that is left."""
    if data and not data.endswith(b"\n"):
        data += b"\n"
    characters = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    lengths = np.diff(ends, prepend=-1) - 1
    lines = np.arange(1, len(ends) + 1, dtype=np.int64)
    if lengths.all():
        return data, lines
    kept = [line for line in data.split(b"\n") if line]
    return b"\n".join(kept) + b"\n" if kept else b"", lines[lengths > 0]


def _check_widths(data: bytes, separator: str, width: int, lines: Ints, path: Path) -> None:
    characters = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    separators = np.flatnonzero(characters == ord(separator))
    per_line = np.diff(np.searchsorted(separators, ends), prepend=0) + 1
    wrong = per_line != width
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{per_line[row]} columns where {width} were expected",
            where=path,
            line=int(lines[row]),
        )
