"""Reading tables, text or xlsx, plain or compressed, so that every complaint can name a line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv

from deltacell.arrays import Ints
from deltacell.errors import InputError

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_IS_WORKBOOK = "[Content_Types].xml"
_CELL_TEXT = re.compile(r"<t(?: [^>]*)?>([^<]*)</t>")
_HEADER_WITHIN = 20
_HEAD_AT_MOST = 8 << 20
# Tables of genes are packed 3 to 30 times smaller.
_ALWAYS_UNPACKED, _AT_MOST_TIMES = 64 << 20, 100
#: No text of a table has it, so that quoted fields may hold the table's own separator.
UNIT = "\x1f"


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
        rows = np.flatnonzero(bad)
        if len(rows):
            others = rows[1:]
            raise InputError(
                f"column '{column}': {written[int(rows[0])]!r} is not a finite number"
                + _and_more(self.lines[others], written.gather(others[:2]).to_list()),
                where=self.path,
                line=int(self.lines[rows[0]]),
            )
        return numbers

    def error(self, row: int, what: str, fix: str | None = None) -> InputError:
        """Return an error that names the line of a row."""
        return InputError(what, where=self.path, line=int(self.lines[row]), fix=fix)


@dataclass(frozen=True)
class Workbook:
    """The bytes of a workbook.

    Parameters
    ----------
    path
        The file it was found in.
    sha256
        Checksum of that file.
    data
        The workbook itself.
    sheet
        The sheet to read; the first where not given.
    """

    path: Path
    sha256: str
    data: bytes
    sheet: str | None = None

    def head(self) -> list[str]:
        """Return the first texts of its cells as one line, separated by tabs.

        This unpacks no more than a little.
        """
        texts: list[str] = []
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            there = set(archive.namelist())
            for name in ("xl/sharedStrings.xml", "xl/worksheets/sheet1.xml"):
                if name in there:
                    with archive.open(name) as member:
                        start = member.read(64 * 1024).decode("utf-8", errors="replace")
                    texts += _CELL_TEXT.findall(start)
        return ["\t".join(texts)]

    def table(self, required: Sequence[str]) -> Table:
        """Return the rows of the first sheet below the header, which may follow a title.

        Parameters
        ----------
        required
            Names that the header has.
        """
        rows = self.top()
        at = next((i for i, row in enumerate(rows) if set(required) <= set(row)), None)
        if at is None:
            raise InputError(
                f"none of the first {_HEADER_WITHIN} rows of the sheet is a header with "
                + ", ".join(f"'{name}'" for name in required),
                where=self.path,
            )
        return self.below(at, rows[at])

    def top(self) -> list[list[str]]:
        """Return the first rows of the first sheet as they are written."""
        top = self._read(n_rows=_HEADER_WITHIN, skip_rows=0, dtypes="string")
        return [[(cell or "").strip() for cell in row] for row in top.iter_rows()]

    def below(self, at: int, header: Sequence[str]) -> Table:
        """Return the rows of the first sheet below its row ``at``, counted from 0.

        Parameters
        ----------
        at, header
            The row that names the columns, and what it holds.
        """
        columns = _column_names(header)
        _check_distinct(columns, self.path, at + 1)
        frame = self._strings(at + 1)
        frame.columns = columns
        lines = np.arange(at + 2, at + 2 + frame.height, dtype=np.int64)
        filled = ~frame.select(pl.all_horizontal(pl.all() == "")).to_series().to_numpy()
        return Table(frame.filter(filled), self.path, lines[filled], self.sha256)

    def _strings(self, skip_rows: int) -> pl.DataFrame:
        frame = self._read(skip_rows=skip_rows)
        # A column of both numbers and texts comes as texts with its numbers rounded (1e-12 is "0"),
        # so its numbers are read once more as such.
        mixed = [i for i, dtype in enumerate(frame.dtypes) if dtype == pl.String]
        mixed = [i for i in mixed if frame[:, i].cast(pl.Float64, strict=False).is_not_null().any()]
        if mixed:
            numbers = self._read(skip_rows=skip_rows, dtypes=dict.fromkeys(mixed, "float"))
            frame = frame.with_columns(
                pl.coalesce(numbers[:, i].cast(pl.Float64).cast(pl.String), frame[:, i]).alias(
                    frame.columns[i]
                )
                for i in mixed
            )
        return frame.cast(pl.String).fill_null("")

    def _read(self, **options: Any) -> pl.DataFrame:
        try:
            return pl.read_excel(
                io.BytesIO(self.data),
                sheet_name=self.sheet,
                engine="calamine",
                has_header=False,
                drop_empty_rows=False,
                drop_empty_cols=False,
                raise_if_empty=False,
                infer_schema_length=None,
                read_options=options,
            )
        except pl.exceptions.PolarsError as error:
            raise InputError(f"the workbook cannot be read: {error}", where=self.path) from error

    def sheet_names(self) -> list[str]:
        """Return the names of all sheets."""
        import fastexcel

        names: list[str] = fastexcel.read_excel(self.data).sheet_names
        return names

    def with_sheet(self, name: str) -> Workbook:
        """Return the workbook with another sheet to read."""
        return replace(self, sheet=name)


def open_text(path: str | os.PathLike[str]) -> Text:
    """Read a file whole: plain, gzip, or a zip with one member; told by content, not by name."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path) from error
    return Text(path, hashlib.sha256(raw).hexdigest(), _unpack(raw, path))


def peek(path: str | os.PathLike[str], lines: int = 20) -> list[str]:
    """Return the first lines of a file, however long, unpacking of a gzip little more than them."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic.startswith(_GZIP):
                head = _head(cast(BinaryIO, gzip.GzipFile(fileobj=file)), lines)
            elif magic == _ZIP:
                head = _head(io.BytesIO(_unpack(file.read(), path)), lines)
            else:
                head = _head(file, lines)
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
    data, lines = without_blank_lines(data)
    if not len(lines):
        raise InputError("the file is empty", where=text.path)
    has_header = columns is None
    if columns is None:
        header = data.split(b"\n", 1)[0].decode().split(separator)
        columns = _column_names(header)
        absent = [name for name in required if name not in columns]
        if absent:
            raise InputError(
                f"the header lacks {_listed(absent)}; it has {_listed(columns)}",
                where=text.path,
                line=int(lines[0]),
            )
        _check_distinct(columns, text.path, int(lines[0]))
    _check_widths(data, separator, len(columns), lines, text.path)
    try:
        parsed = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(column_names=list(columns), skip_rows=int(has_header)),
            arrow_csv.ParseOptions(delimiter=separator, quote_char=False),
            arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in columns}, strings_can_be_null=False
            ),
        )
        frame = pl.from_arrow(parsed)
    except (pa.ArrowInvalid, pl.exceptions.PolarsError) as error:
        raise InputError(f"not a table of text: {error}", where=text.path) from error
    assert isinstance(frame, pl.DataFrame)
    return Table(frame, text.path, lines[1:] if has_header else lines, text.sha256)


def fields_of(line: str, separator: str) -> list[str]:
    """Return the fields of a line, whose quotes may hold the separator; spaces count as one."""
    if separator == " ":
        line = " ".join(line.split())
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:  # A field too long for it: its quotes then count as text.
        return line.split(separator)


def open_workbook(path: str | os.PathLike[str], member: str) -> Workbook | None:
    """Return the workbook that a file is or holds; None where there is none.

    Parameters
    ----------
    path
        An xlsx, or a zip with one or several of them.
    member
        A regular expression for the name of the one meant, where a zip holds several.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(len(_ZIP)) != _ZIP:
                return None
        raw = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            names = archive.namelist()
            _check_unpacked(_unpacked(archive), len(raw), path)
            if _IS_WORKBOOK in names:
                return Workbook(path, hashlib.sha256(raw).hexdigest(), raw)
            books = [n for n in names if n.lower().endswith(".xlsx") and not _is_hidden(n)]
            meant = [n for n in books if re.search(member, Path(n).name, re.IGNORECASE)]
            chosen = meant if len(books) > 1 else books
            if len(chosen) != 1:
                return None
            book = archive.read(chosen[0])
            with zipfile.ZipFile(io.BytesIO(book)) as inner:
                _check_unpacked(_unpacked(inner), len(raw), path)
            return Workbook(path, hashlib.sha256(raw).hexdigest(), book)
    except zipfile.BadZipFile as error:
        raise InputError(f"the zip file is damaged ({error})", where=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error


def _head(file: BinaryIO, lines: int) -> bytes:
    """Return the beginning of a file with so many lines; a header of genes' profiles is long."""
    head = b""
    while len(head) < _HEAD_AT_MOST and head.count(b"\n") < lines:
        more = file.read(64 * 1024)
        if not more:
            break
        head += more
    return head


def _column_names(header: Sequence[str]) -> list[str]:
    """Return the names of the columns, ``column 8`` for the eighth where it has none."""
    return [name.strip() or f"column {i}" for i, name in enumerate(header, 1)]


def _check_distinct(columns: Sequence[str], path: Path, line: int) -> None:
    if len(set(columns)) != len(columns):
        twice = next(name for i, name in enumerate(columns) if name in columns[:i])
        raise InputError(
            f"the column name '{twice}' stands twice in the header", where=path, line=line
        )


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or Path(name).name.startswith((".", "~$"))


def _unpack(raw: bytes, path: Path) -> bytes:
    if raw.startswith(_GZIP):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                return _read_within(cast(BinaryIO, file), len(raw), path)
        except (EOFError, OSError, zlib.error) as error:
            raise _cut_off(error, path) from error
    if raw.startswith(_ZIP):
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                members = _members(archive)
                if _IS_WORKBOOK in members:
                    _check_unpacked(_unpacked(archive), len(raw), path)
                    return raw
                if len(members) != 1:
                    raise InputError(
                        f"the zip file holds {len(members)} files, and one was expected: "
                        f"{_listed(members)}",
                        where=path,
                        fix="Unpack it and name the file you mean.",
                    )
                with archive.open(members[0]) as member:
                    return _read_within(cast(BinaryIO, member), len(raw), path)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(f"the zip file is damaged ({error})", where=path) from error
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"the zip file cannot be unpacked ({error})", where=path, fix="Unpack it first."
            ) from error
    return raw


def _read_within(file: BinaryIO, packed: int, path: Path) -> bytes:
    """Return what a packed file holds, no more than `_check_unpacked` lets through."""
    found = io.BytesIO()
    while piece := file.read(1 << 22):
        found.write(piece)
        _check_unpacked(found.tell(), packed, path)
    return found.getvalue()


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def _check_unpacked(size: int, packed: int, path: Path) -> None:
    if size > max(_ALWAYS_UNPACKED, _AT_MOST_TIMES * packed):
        raise InputError(
            f"the file is packed {_AT_MOST_TIMES} times smaller than what it holds or more, as no "
            "table of measurements is: this may be a file that is made to fill the memory",
            where=path,
            fix="If you trust it, unpack it first (gunzip, unzip) and give what it holds.",
        )


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


def without_blank_lines(data: bytes) -> tuple[bytes, Ints]:
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


def line_widths(data: bytes, separator: str) -> Ints:
    """Return the number of fields of each line, none of which is blank."""
    characters = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    separators = np.flatnonzero(characters == ord(separator))
    widths: Ints = np.diff(np.searchsorted(separators, ends), prepend=0) + 1
    return widths


def _check_widths(data: bytes, separator: str, width: int, lines: Ints, path: Path) -> None:
    per_line = line_widths(data, separator)
    wrong = np.flatnonzero(per_line != width)
    if len(wrong):
        raise InputError(
            f"{per_line[wrong[0]]} columns where {width} were expected"
            + _and_more(lines[wrong[1:]], per_line[wrong[1:]].tolist()),
            where=path,
            line=int(lines[wrong[0]]),
        )


def _and_more(lines: Ints, written: Sequence[object]) -> str:
    """Return how many more rows are bad in the same way, with examples; nothing where none is."""
    if not len(lines):
        return ""
    examples = ", ".join(
        f"{what!r} in line {line}" for line, what in list(zip(lines, written, strict=False))[:2]
    )
    return f", and so in {len(lines):,} more row{'s' * (len(lines) > 1)}, such as {examples}"
