"""Source files as tables of text, in which each row has a line number that errors can name.

A file is text with any separator, in UTF-8, UTF-16 or Latin-1, plain, gzip or zip, with or without
title lines above its header; an xlsx workbook; or Parquet.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError, need
from deltacell.base.plain_text import INVISIBLE, PlainText, plain_text
from deltacell.base.text import count_text

#: Representations of a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "#n/a", "null", "none", "-", "."})
#: The number of rows in which a header is searched for.
HEADER_WITHIN = 20

_SEPARATORS = ("\t", ";", ",", "|", " ")
_UNIT = "\x1f"  # a separator that does not occur in text
_LOOKED_AT, _START = 40, 1 << 20  # lines and bytes
_EXAMPLES = 3
_GZIP, _ZIP, _PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
_IS_WORKBOOK = "[Content_Types].xml"
# JSON and XML, whose long lines would take seconds to parse as tables.
_NO_TABLE = re.compile(r"\s*(\{\s*(\"\w+\":|$)|\[\s*(\{|$)|<(\?xml|!DOCTYPE|sbml)\b)")
# The journal packs Kuzmin 2020's workbook with twelve others.
_CHOSEN_MEMBER = r"(?i)table[-_ ]?s1\.xlsx$"
# Folders, and files that macOS and Excel hide in a zip.
_NO_MEMBER = r"/$|^__MACOSX/|^(\.|~\$)|/(\.|~\$)[^/]*$"
_ALWAYS_UNPACKED, _AT_MOST_TIMES = 64 << 20, 100
_NUMBER = re.compile(r"[-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?")
_DECIMAL_COMMA = r"^[-+\u2212]?\d*,\d+(?:[eE][-+]?\d+)?$"
_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_PUNCTUATION = re.compile(r"[\W_]+")
_GENE_KEY = re.compile(r"(?:genes?|query|array)\d{0,2}")
_KEY = re.compile(rf"{_GENE_KEY.pattern}|score|fitness|weight|p_value|sd|study|split")

Form = TypeVar("Form")


@dataclass(frozen=True)
class Table:
    """Columns of text, stripped of whitespace, and the line that each row came from."""

    frame: pl.DataFrame
    lines: Ints  # from 1
    path: Path
    sha256: str
    decimal_comma: bool = False  # whether a comma between digits is always a decimal comma
    notes: dict[str, int | str] = field(default_factory=dict)  # on the layout of the file
    _bad: dict[str, list[tuple[int, str]]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_memory(cls, table: Any, name: str) -> Table:
        """Return a table in memory, see `frame_of`, as if it were a file with that name."""
        frame, notes = _visible(_as_texts(frame_of(table, name)))
        sha256 = hashlib.sha256(frame.write_csv().encode()).hexdigest()
        return cls(frame, np.arange(1, frame.height + 1), Path(name), sha256, notes=notes)

    def __len__(self) -> int:
        return self.frame.height

    def take(self, rows: Bools) -> Table:
        return replace(self, frame=self.frame.filter(pl.Series(rows)), lines=self.lines[rows])

    def numbers(self, column: str, *, required: bool = False) -> Doubles:
        """Return a column as finite numbers, NaN where missing; other fields are reported."""
        values, wrong = numbers_of(self.frame[column], decimal_comma=self.decimal_comma)
        if required:
            wrong |= np.isnan(values)
        self.bad(f"column '{column}' is not a finite number", column, wrong)
        return values

    def check_not_repeated(self, column: str) -> None:
        """Raise if another column has the same header and other contents."""
        again = [n for n in self.frame.columns if re.fullmatch(rf"{re.escape(column)} \(\d+\)", n)]
        if any(not self.frame[name].equals(self.frame[column]) for name in again):
            what = f"{len(again) + 1} columns are named '{column}' and differ"
            fix = "Rename them, or remove all but one."
            raise InputError(what, code="repeated-column", where=self.path, fix=fix, column=column)

    def bad(self, kind: str, column: str, wrong: Any) -> None:
        """Record the rows whose field of a column is wrong; `refuse` reports them."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            fields = self.frame[column].gather(rows).to_list()
            found = zip(self.lines[rows].tolist(), fields, strict=True)
            self._bad.setdefault(kind, []).extend(found)

    def refuse(self, fix: str = "") -> None:
        """Raise if any row is bad, with the count and three examples of each kind of error."""
        if not self._bad:
            return
        said = []
        for kind, places in self._bad.items():
            examples = "; ".join(f"line {line}: {what[:80]!r}" for line, what in places[:_EXAMPLES])
            more = ", …" if len(places) > _EXAMPLES else ""
            said.append(f"{kind} in {count_text(len(places), 'row')} ({examples}{more})")
        raise InputError(
            "; ".join(said),
            code="bad-rows",
            where=self.path,
            line=min(line for places in self._bad.values() for line, _ in places),
            fix=fix or "Correct these rows; leave a field empty (or NA) if its value is missing.",
            kinds={kind: len(places) for kind, places in self._bad.items()},
        )


@dataclass(frozen=True)
class Sheet:
    """The first non-blank rows of a table, split at one separator, and access to the others."""

    file: File
    rows: list[list[str]]
    lines: list[int]  # of the rows, from 1
    separator: str = ""  # empty if the file is not text
    name: str = ""  # in its workbook

    @cached_property
    def headers(self) -> list[tuple[int, list[str], list[str]]]:
        """The rows that may be the header: their number, names and names as words."""
        names = [self.header(at) for at in range(min(len(self.rows), HEADER_WITHIN))]
        return [(at, header, [*map(word, header)]) for at, header in enumerate(names)]

    def header(self, at: int) -> list[str]:
        """Return the fields of a row as distinct column names, ``column 8`` if one is empty."""
        fields = self.rows[at]
        # R omits the header of the column of row names.
        if at + 1 < len(self.rows) and len(fields) + 1 == len(self.rows[at + 1]):
            fields = ["", *fields]
        names: dict[str, None] = {}
        for i, name in enumerate([fields[0].removeprefix("#").strip(), *fields[1:]], 1):
            unique = name or f"column {i}"
            names[f"{unique} ({i})" if unique in names else unique] = None
        return list(names)

    def names(self, at: int | None) -> list[str]:
        """Return the column names of a header; without one, the column numbers."""
        return _numbered(len(self.rows[0])) if at is None else self.header(at)

    def below(self, at: int | None, *, names: Sequence[str] = (), quotes: bool = True) -> Table:
        """Return the rows below a header, or all rows, with these `names`, if there is none.

        Rows with another number of fields are bad; blank rows are omitted. Without `quotes`, a
        quotation mark is text.
        """
        names, skip = names or self.names(at), 0 if at is None else self.lines[at]
        if self.separator:
            table = self._split(skip, len(names), quotes)
        else:
            table = self.file.cells(self.name)
            table = table.take(table.lines > skip)
        if self.name:
            table.notes["sheet"] = self.name
        frame = table.frame.select(pl.all().fill_null("").str.strip_chars())
        frame.columns = list(names)
        filled = frame.select(pl.any_horizontal(pl.all() != "")).to_series().to_numpy()
        return replace(table, frame=frame, decimal_comma=self.separator == ";").take(filled)

    def _split(self, skip: int, width: int, quotes: bool) -> Table:
        table = self.file.lines()
        table = table.take(table.lines > skip)
        rows, separator = table.frame["text"], self.separator
        if quotes and rows.str.contains('"', literal=True).any():
            separator = _UNIT
            joined = [separator.join(fields_of(row, self.separator)) for row in rows]
            rows = pl.Series(joined, dtype=pl.String)
        elif separator == " ":
            rows = rows.str.strip_chars().str.replace_all(r"\s+", " ")
        wrong = (rows.str.count_matches(separator, literal=True) != width - 1).to_numpy()
        table.bad(f"other than {width} columns", "text", wrong)
        if len(wrong) and wrong.all():
            table.refuse("Every row has a different number of fields than the header.")
        fields = rows.filter(~wrong).str.split_exact(separator, width - 1)
        return replace(table.take(~wrong), frame=fields.struct.unnest())


class File:
    """A source file, read lazily; `columns` are the meanings that the user gave."""

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> None:
        self.path, self.columns = Path(path), columns

    @cached_property
    def _start(self) -> bytes:
        """The first bytes, decompressed; empty for a zip of several files."""
        try:
            with _unpacked(self.path) as file:
                return file.read(_START)
        except InputError as error:
            if error.code != "several-files":
                raise
            return b""

    @cached_property
    def head(self) -> list[str]:
        """The first lines of a text file; empty if the file is not text."""
        start = b"" if self.is_workbook else self._start
        if len(start) == _START:
            start = start[: start.rfind(b"\n") + 1] or start  # without an incomplete line
        lines = plain_text(start).utf8.decode().split("\n", _LOOKED_AT)[:_LOOKED_AT]
        return [] if any("\0" in line for line in lines) else lines

    @cached_property
    def sheets(self) -> list[Sheet]:
        """The ways to split the file into rows: its sheets, or one per possible separator."""
        if self.is_workbook:
            names = self._book.sheet_names
            tops = {name: (1, self._cells(name, "string", HEADER_WITHIN)) for name in names}
        elif self._start.startswith(_PARQUET):
            frame = self.cells("").frame
            header = pl.DataFrame({name: [name] for name in frame.columns})
            tops = {"": (0, pl.concat([header, frame.head(_LOOKED_AT)]))}
        else:
            written = {n: line for n, line in enumerate(self.head, 1) if line.strip()}
            if _NO_TABLE.match(next(iter(written.values()), "")):
                return []
            return [
                Sheet(self, [fields_of(line, s) for line in written.values()], list(written), s)
                for s in _SEPARATORS
                if any(s in line.strip() for line in written.values())
            ]
        found = []
        for name, (first, top) in tops.items():
            texts = ([(cell or "").strip() for cell in row] for row in top.rows())
            filled = {line: row for line, row in enumerate(texts, first) if any(row)}
            found += [Sheet(self, [*filled.values()], [*filled], name=name)] if filled else []
        return found

    def forms(self, ways: Sequence[Callable[[Sheet], Form | None]]) -> list[Form]:
        """Return the first form that fits the file or, for a workbook, each of its sheets."""
        if self.is_workbook:
            each = [next((form for way in ways if (form := way(s))), None) for s in self.sheets]
            return [form for form in each if form is not None]
        found = (form for way in ways for sheet in self.sheets if (form := way(sheet)))
        return list(islice(found, 1))

    def lines(self) -> Table:
        """Return the non-blank lines of a text file as a table with one column ``text``."""
        data, sha256 = open_text(self.path)
        text = plain_text(data)
        with reading(self.path):
            frame = pl.read_csv(
                text.utf8,
                has_header=False,
                separator="\0",
                quote_char=None,
                schema={"text": pl.String},
                raise_if_empty=False,
            )
        lines = np.arange(1, frame.height + 1)
        table = Table(frame, lines, self.path, sha256, notes=text.notes)
        return table.take(frame["text"].is_not_null().to_numpy())

    def cells(self, sheet: str) -> Table:
        """Return all cells of a workbook's sheet, or of a Parquet file, as text."""
        data, sha256 = open_text(self.path)
        if self.is_workbook:
            # Numbers read as text are rounded (1e-12 is "0"), so numbers are read as numbers.
            numbers, texts = (self._cells(sheet, kind) for kind in ("float", "string"))
            exact = numbers.cast(pl.String).select(pl.all().str.replace(r"\.0$", ""))
            frame = pl.select(pl.coalesce(n, texts[n.name]).alias(n.name) for n in exact)
        else:
            with reading(self.path):
                frame = _as_texts(pl.read_parquet(io.BytesIO(data)))
        frame, notes = _visible(frame)
        return Table(frame, np.arange(1, frame.height + 1), self.path, sha256, notes=notes)

    @property
    def is_workbook(self) -> bool:
        """Whether the file is an xlsx workbook, or a zip that contains one."""
        return self._start.startswith(_ZIP)

    @cached_property
    def _book(self) -> Any:
        need("fastexcel", "Reading xlsx", "xlsx")
        import fastexcel

        with reading(self.path):
            return fastexcel.read_excel(open_text(self.path)[0])

    def _cells(self, sheet: str, kind: str, most: int | None = None) -> pl.DataFrame:
        with reading(self.path):
            found = self._book.load_sheet(sheet, header_row=None, n_rows=most, dtypes=kind)
            return cast(pl.DataFrame, found.to_polars())


@dataclass(frozen=True)
class ColumnNames:
    """What the columns of a table mean, as given by the user: ``gene1=ORF,gene2=Orf 2,score=x``."""

    names: Mapping[str, str]  # a column's name, or its number from 1, by key

    @classmethod
    def parse(cls, written: str) -> ColumnNames:
        """Parse ``KEY=COLUMN,KEY=COLUMN``; a name may contain commas that no ``KEY=`` follows."""
        parts = re.split(r",\s*(?=[A-Za-z_]+\d*\s*=)", written.strip())
        split = (part.partition("=") for part in parts)
        pairs = [(key.strip().lower(), name.strip()) for key, _, name in split]
        found = cls(dict(pairs))
        whole = all(name and _KEY.fullmatch(key) for key, name in pairs)
        of_two = len(found.genes) > 1 or any(key.startswith("genes") for key in found.genes)
        if whole and of_two and len(found.names) == len(pairs):
            return found
        raise InputError(
            f"--columns {written!r} is not KEY=COLUMN,KEY=COLUMN with two columns of genes",
            code="bad-columns",
            fix="The keys are gene1, gene2, … or query, array or genes, score or fitness or "
            "weight, p_value, sd, study, split; each once: gene1=ORF,gene2=Partner,score=S. "
            "A column of genes, genes1, … is split into its names.",
        )

    @property
    def genes(self) -> list[str]:
        return [key for key in self.names if _GENE_KEY.fullmatch(key)]

    def find(self, sheet: Sheet) -> tuple[int | None, dict[str, int]] | None:
        """Return the row of the header in a sheet and the position of each column, if found."""
        first = sheet.rows[0]
        at = self._places(_numbered(len(first)))
        if at is not None:
            number = next(at[key] for key in ("score", "fitness", "weight") if key in at)
            if is_number(first[number]) and not any(is_number(first[at[k]]) for k in self.genes):
                return None, at
        headers = ((row, self._places(header)) for row, header, _ in sheet.headers)
        return next(((row, places) for row, places in headers if places), None)

    def _places(self, header: Sequence[str]) -> dict[str, int] | None:
        there = {name.lower(): i for i, name in reversed(list(enumerate(header)))}
        found = {k: there[name.lower()] for k, name in self.names.items() if name.lower() in there}
        return found if len(found) == len(self.names) else None


def frame_of(table: Any, name: str) -> pl.DataFrame:
    """Convert a pandas or polars table, or columns by name, to polars; errors call it `name`."""
    try:
        if isinstance(table, pl.DataFrame):
            return table
        if hasattr(table, "to_dict") and hasattr(table, "columns"):
            table = {str(column): table[column].tolist() for column in table.columns}
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        fix = "Pass a pandas or polars data frame, or columns by name."
        what = f"'{name}' is not a table ({error})"
        raise InputError(what, code="not-a-table", fix=fix) from error


def _as_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that are not nested as stripped text."""
    flat = frame.select(column for column in frame if not column.dtype.is_nested())
    texts = flat.with_columns(pl.col(pl.Boolean).cast(pl.Int8)).cast(pl.String)
    return texts.select(pl.all().fill_null("").str.strip_chars())


def _visible(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int | str]]:
    """Return columns of text without invisible characters, and a note on their number."""
    pattern = f"[{INVISIBLE}]"
    counts = frame.select(pl.all().str.count_matches(pattern).sum()).fill_null(0)
    n_invisible = sum(counts.row(0)) if counts.height else 0
    if not n_invisible:
        return frame, {}
    visible = frame.with_columns(pl.all().str.replace_all(pattern, "").str.strip_chars())
    return visible, PlainText(b"", n_invisible).notes


def _numbered(width: int) -> list[str]:
    return [str(i) for i in range(1, width + 1)]


def open_text(path: str | os.PathLike[str]) -> tuple[bytes, str]:
    """Return the contents of a file, decompressed, and the SHA-256 of the file on disk."""
    path, found = Path(path), io.BytesIO()
    with _unpacked(path) as file:
        # Tables of genes compress by a factor of 3 to 30.
        most = max(_ALWAYS_UNPACKED, _AT_MOST_TIMES * path.stat().st_size)
        while (piece := file.read(1 << 22)) and found.tell() <= most:
            found.write(piece)
        size = found.tell()
        if found.getvalue()[:4] == _ZIP:
            with zipfile.ZipFile(found) as workbook:
                size = sum(member.file_size for member in workbook.infolist())
        if size > most:
            what = f"the file unpacks to more than {_AT_MOST_TIMES} times its size"
            fix = "It may be built to fill the memory. If you trust it, unpack it first."
            raise InputError(what, code="decompression-bomb", where=path, fix=fix)
        with path.open("rb") as packed:
            sha256 = hashlib.file_digest(packed, "sha256").hexdigest()
    return found.getvalue(), sha256


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; for gzip or a zip with one member, the contents."""
    with reading(path), path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_GZIP):
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file))
        elif start == _ZIP:
            with zipfile.ZipFile(file) as archive:
                members = [name for name in archive.namelist() if not re.search(_NO_MEMBER, name)]
                chosen = [m for m in members if len(members) == 1 or re.search(_CHOSEN_MEMBER, m)]
                if _IS_WORKBOOK in members:
                    file.seek(0)
                    yield file
                elif len(chosen) == 1:
                    with archive.open(chosen[0]) as member:
                        yield member
                else:
                    what = f"expected a zip of one file, but it contains {len(members)}"
                    fix = "Unpack it."
                    raise InputError(what, code="several-files", where=path, fix=fix)
        else:
            yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors while reading or decompressing a file to an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise InputError(what, code="unreadable", where=path) from error
    except Exception as error:
        # gzip, zipfile, zlib, polars and fastexcel raise their own errors for damaged files.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        what = f"the file is truncated or damaged, or cannot be unpacked ({reason})"
        fix = "Download it again, or unpack it first."
        raise InputError(what, code="unreadable", where=path, fix=fix) from error


def fields_of(line: str, separator: str) -> list[str]:
    """Return the fields of a line, which may be quoted; several spaces count as one."""
    if separator == " ":
        line = " ".join(line.split())
    fields = line.split(separator)
    if '"' in line:
        # A field may be too long for the parser; quotes are then text.
        with suppress(csv.Error):
            fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [field.strip() for field in fields]


def word(header: str) -> str:
    """Return a column name in lower case, without spaces and punctuation."""
    return _PUNCTUATION.sub("", header.lower())


def is_number(written: str) -> bool:
    return _NUMBER.fullmatch(written.replace("\u2212", "-")) is not None


def is_missing(written: pl.Series) -> Bools:
    return written.str.to_lowercase().is_in(list(MISSING)).to_numpy()


def present(column: pl.Series) -> pl.Series:
    """Return a column of text with missing values as empty strings."""
    return column.set(pl.Series(is_missing(column), dtype=pl.Boolean), "")


def numbers_of(written: pl.Series, *, decimal_comma: bool) -> tuple[Doubles, Bools]:
    """Return a column as numbers, NaN where missing, and which fields are invalid.

    A comma is decimal if no number has a point and it cannot separate thousands.
    """
    absent = is_missing(written)
    numbers = written.cast(pl.Float64, strict=False)
    if (numbers.is_null().to_numpy() & ~absent).any():
        plain = written.str.replace("\u2212", "-", literal=True)
        commas = plain.str.contains(_DECIMAL_COMMA)
        pointed = plain.str.contains(r"^[-+]?\d*\.\d+").any()
        thousands = not decimal_comma and plain.filter(commas).str.contains(_THOUSANDS).all()
        if commas.any() and not pointed and not thousands:
            plain = plain.str.replace(",", ".", literal=True)
        numbers = plain.cast(pl.Float64, strict=False)
    values = numbers.to_numpy().astype(np.float64, copy=True)
    bad: Bools = ~absent & ~(np.abs(values) <= float(np.finfo(np.float32).max))
    values[absent | bad] = np.nan
    return values, bad
