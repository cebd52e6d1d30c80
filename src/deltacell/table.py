"""Tables as text or xlsx, plain or compressed, read so that every error can name a line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv

from deltacell.arrays import Doubles, Ints
from deltacell.errors import InputError

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_IS_WORKBOOK = "[Content_Types].xml"
_HEADER_WITHIN = 20
# Tables of genes are compressed 3 to 30 times.
_ALWAYS_UNPACKED, _AT_MOST_TIMES = 64 << 20, 100
#: No text of a table has it, so that quoted fields may hold the table's own separator.
UNIT = "\x1f"


@dataclass(frozen=True)
class Text:
    """The unpacked bytes of a file; of a zip, those of its only member."""

    path: Path
    sha256: str  # of the file as it is on disk
    data: bytes

    @property
    def is_spreadsheet(self) -> bool:
        """Whether the contents are an xlsx workbook."""
        return self.data.startswith(_ZIP)


@dataclass(frozen=True)
class Table:
    """Columns of strings, with the line that each row came from."""

    frame: pl.DataFrame
    path: Path
    lines: Ints  # from 1
    sha256: str

    def __len__(self) -> int:
        return self.frame.height

    def strings(self, column: str) -> pl.Series:
        """Return a column as it is written."""
        return self.frame[column]

    def floats(self, column: str, *, missing: bool = False) -> Doubles:
        """Return a column as finite numbers; with `missing`, NaN for an empty field, NA or NaN."""
        written = self.frame[column].str.strip_chars()
        numbers = written.cast(pl.Float64, strict=False).to_numpy().astype(np.float64, copy=True)
        bad = ~np.isfinite(numbers)
        if missing:
            absent = written.str.to_lowercase().is_in(["", "na", "nan"]).to_numpy()
            numbers[absent] = np.nan
            bad &= ~absent
        rows = np.flatnonzero(bad)
        if len(rows):
            more = _and_more(self.lines[rows[1:]], written.gather(rows[1:3]).to_list())
            what = f"column '{column}': {written[int(rows[0])]!r} is not a finite number{more}"
            raise self.error(int(rows[0]), what, code="not-a-number")
        return numbers

    def error(
        self, row: int, what: str, fix: str | None = None, code: str = "bad-field"
    ) -> InputError:
        """Return an error that names the line of a row."""
        return InputError(what, code=code, where=self.path, line=int(self.lines[row]), fix=fix)

    def refuse(self, column: str, wrong: Any, what: str, fix: str | None = None) -> None:
        """Raise for the first row where `wrong`: the field of the column is, say, not a number."""
        if wrong.any():
            row = int(np.asarray(wrong).argmax())
            said = f"column '{column}': '{self.frame[column][row].strip()}' {what}"
            raise self.error(row, said, fix)


@dataclass(frozen=True)
class Workbook:
    """An xlsx workbook and the sheet to read, the first where none is given."""

    path: Path
    sha256: str  # of the file, which may be a zip around the workbook
    data: bytes
    sheet: str | None = None

    def head(self) -> list[str]:
        """Return the first texts of its cells in one line, separated by tabs, unpacking little."""
        texts: list[str] = []
        with _reading(self.path), zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            for name in ("xl/sharedStrings.xml", "xl/worksheets/sheet1.xml"):
                if name in archive.namelist():
                    with archive.open(name) as member:
                        start = member.read(64 * 1024).decode("utf-8", errors="replace")
                    texts += re.findall(r"<t(?: [^>]*)?>([^<]*)</t>", start)
        return ["\t".join(texts)]

    def table(self, required: Sequence[str]) -> Table:
        """Return the rows below the first header that has the required names."""
        rows = self.top()
        at = next((i for i, row in enumerate(rows) if set(required) <= set(row)), None)
        if at is None:
            raise InputError(
                f"none of the first {_HEADER_WITHIN} rows of the sheet is a header with "
                + _listed(required),
                code="missing-columns",
                where=self.path,
            )
        return self.below(at, rows[at])

    def top(self) -> list[list[str]]:
        """Return the first rows as they are written."""
        top = self._read(n_rows=_HEADER_WITHIN, skip_rows=0, dtypes="string")
        return [[(cell or "").strip() for cell in row] for row in top.iter_rows()]

    def below(self, at: int, header: Sequence[str]) -> Table:
        """Return the rows below row `at`, counted from 0, whose columns `header` names."""
        frame = self._read(skip_rows=at + 1)
        # A column of both numbers and texts comes as texts with its numbers rounded (1e-12 is "0"),
        # so its numbers are read once more as such.
        texts = [i for i, dtype in enumerate(frame.dtypes) if dtype == pl.String]
        mixed = [i for i in texts if frame[:, i].cast(pl.Float64, strict=False).is_not_null().any()]
        if mixed:
            numbers = self._read(skip_rows=at + 1, dtypes=dict.fromkeys(mixed, "float"))
            exact = {i: numbers[:, i].cast(pl.Float64).cast(pl.String) for i in mixed}
            frame = frame.with_columns(
                pl.coalesce(exact[i], frame[:, i]).alias(frame.columns[i]) for i in mixed
            )
        frame = frame.cast(pl.String).fill_null("")
        frame.columns = _column_names(header, self.path, at + 1)
        lines = np.arange(at + 2, at + 2 + frame.height, dtype=np.int64)
        filled = ~frame.select(pl.all_horizontal(pl.all() == "")).to_series().to_numpy()
        return Table(frame.filter(filled), self.path, lines[filled], self.sha256)

    def sheet_names(self) -> list[str]:
        """Return the names of all sheets."""
        import fastexcel

        with self._opened():
            names: list[str] = fastexcel.read_excel(self.data).sheet_names
            return names

    def with_sheet(self, name: str) -> Workbook:
        """Return the workbook with another sheet to read."""
        return replace(self, sheet=name)

    def _read(self, **options: Any) -> pl.DataFrame:
        with self._opened():
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

    @contextmanager
    def _opened(self) -> Iterator[None]:
        import fastexcel

        try:
            yield
        except (pl.exceptions.PolarsError, fastexcel.FastExcelError) as error:
            reason = str(error).splitlines()[0]
            raise _unreadable(self.path, f"the workbook cannot be read: {reason}") from error


def open_text(path: str | os.PathLike[str]) -> Text:
    """Read a whole file, gzip and a zip with one member unpacked, recognised by content."""
    path = Path(path)
    with _reading(path):
        raw = path.read_bytes()
        return Text(path, hashlib.sha256(raw).hexdigest(), _unpack(raw, path))


def peek(path: str | os.PathLike[str], lines: int = 20) -> list[str]:
    """Return the first lines of a file, however long, unpacking little more than these."""
    path = Path(path)
    head = b""
    with _reading(path), path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        opened: IO[bytes] = file
        if magic.startswith(_GZIP):
            opened = cast(IO[bytes], gzip.GzipFile(fileobj=file))
        elif magic == _ZIP:
            opened = io.BytesIO(_unpack(file.read(), path))
        # The header of a table of profiles may have thousands of columns.
        while len(head) < 8 << 20 and head.count(b"\n") < lines and (more := opened.read(1 << 16)):
            head += more
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return head.decode(encoding, errors="replace").lstrip("\ufeff").splitlines()[:lines]


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
    """Read delimited text into columns of strings."""
    text = path if isinstance(path, Text) else open_text(path)
    data = text.data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        what, line = (
            f"byte 0x{data[error.start]:02x} is not UTF-8 text",
            data.count(b"\n", 0, error.start),
        )
        raise InputError(what, code="not-utf8", where=text.path, line=line + 1) from error
    data, lines = without_blank_lines(data)
    if not len(lines):
        raise InputError("the file is empty", code="empty-file", where=text.path)
    has_header = columns is None
    if columns is None:
        columns = data.split(b"\n", 1)[0].decode().split(separator)
        named = [name.strip() for name in columns]
        absent = [name for name in required if name not in named]
        if absent:
            raise InputError(
                f"the header lacks {_listed(absent)}; it has {_listed(named)}",
                code="missing-columns",
                where=text.path,
                line=int(lines[0]),
                absent=absent,
            )
        columns = _column_names(columns, text.path, int(lines[0]))
    widths = line_widths(data, separator)
    wrong = np.flatnonzero(widths != len(columns))
    if len(wrong):
        more = _and_more(lines[wrong[1:]], widths[wrong[1:]].tolist())
        what = f"{widths[wrong[0]]} columns where {len(columns)} were expected{more}"
        line = int(lines[wrong[0]])
        raise InputError(what, code="wrong-width", where=text.path, line=line)
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
        raise _unreadable(text.path, f"not a table of text: {error}") from error
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
    except csv.Error:  # A field is too long for it: quotes then count as text.
        return line.split(separator)


def open_workbook(path: str | os.PathLike[str], member: str) -> Workbook | None:
    """Return the workbook that a file is or holds, or None."""
    path = Path(path)
    with _reading(path):
        with path.open("rb") as file:
            if file.read(len(_ZIP)) != _ZIP:
                return None
        raw = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            names = archive.namelist()
            _check_unpacked(_unpacked(archive), len(raw), path)
            book = raw
            if _IS_WORKBOOK not in names:
                books = [n for n in names if n.lower().endswith(".xlsx") and not _is_hidden(n)]
                meant = [n for n in books if re.search(member, Path(n).name, re.IGNORECASE)]
                chosen = meant if len(books) > 1 else books
                if len(chosen) != 1:
                    return None
                book = archive.read(chosen[0])
                with zipfile.ZipFile(io.BytesIO(book)) as inner:
                    _check_unpacked(_unpacked(inner), len(raw), path)
        return Workbook(path, hashlib.sha256(raw).hexdigest(), book)


def without_blank_lines(data: bytes) -> tuple[bytes, Ints]:
    """Return the text without its blank lines, and the number of each line that is left."""
    if data and not data.endswith(b"\n"):
        data += b"\n"
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say what is wrong with a file that cannot be read or unpacked."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _unreadable(
            path,
            f"the compressed file is cut off or damaged ({error})",
            "Download it again and compare its size with the original.",
        ) from error
    except zipfile.BadZipFile as error:
        raise _unreadable(path, f"the zip file is damaged ({error})") from error
    except (RuntimeError, NotImplementedError) as error:
        what = f"the zip file cannot be unpacked ({error})"
        raise _unreadable(path, what, "Unpack it first.") from error
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror or error}") from error


def _unpack(raw: bytes, path: Path) -> bytes:
    if raw.startswith(_GZIP):
        return _read_within(gzip.GzipFile(fileobj=io.BytesIO(raw)), len(raw), path)
    if not raw.startswith(_ZIP):
        return raw
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = _members(archive)
        if _IS_WORKBOOK in members:
            _check_unpacked(_unpacked(archive), len(raw), path)
            return raw
        if len(members) != 1:
            raise InputError(
                f"the zip file holds {len(members)} files where one was expected: "
                + _listed(members),
                code="several-files",
                where=path,
                fix="Unpack it and give the file itself.",
            )
        with archive.open(members[0]) as member:
            return _read_within(member, len(raw), path)


def _read_within(file: IO[bytes] | gzip.GzipFile, packed: int, path: Path) -> bytes:
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
            f"the file unpacks to more than {_AT_MOST_TIMES} times its size, as no table of "
            "measurements does: it may be made to fill the memory",
            code="decompression-bomb",
            where=path,
            fix="If you trust it, unpack it first (gunzip, unzip).",
        )


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or Path(name).name.startswith((".", "~$"))


def _members(archive: zipfile.ZipFile) -> list[str]:
    names = archive.namelist()
    return [n for n in names if not n.endswith("/") and not n.startswith("__MACOSX/")]


def _column_names(header: Sequence[str], path: Path, line: int) -> list[str]:
    """Return the names of the columns, ``column 8`` for the eighth where it has none."""
    names = [name.strip() or f"column {i}" for i, name in enumerate(header, 1)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        what = f"two columns are called '{twice}'"
        raise InputError(what, code="duplicate-column", where=path, line=line)
    return names


def _unreadable(path: Path, what: str, fix: str | None = None) -> InputError:
    return InputError(what, code="unreadable", where=path, fix=fix)


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _and_more(lines: Ints, written: Sequence[object]) -> str:
    """Return how many more rows are bad in the same way, with two examples."""
    if not len(lines):
        return ""
    pairs = list(zip(lines, written, strict=False))[:2]
    examples = ", ".join(f"{what!r} in line {line}" for line, what in pairs)
    return f", and so in {len(lines):,} more row{'s' * (len(lines) > 1)}, such as {examples}"
