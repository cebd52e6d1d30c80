"""Tables as people save them: any separator, titles above the header, workbooks, Latin-1."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from deltacell.arrays import Bools, Doubles, Ints
from deltacell.errors import InputError
from deltacell.table import (
    UNIT,
    Table,
    Text,
    Workbook,
    fields_of,
    holds_several_files,
    line_widths,
    open_text,
    open_workbook,
    peek,
    read_table,
    without_blank_lines,
)
from deltacell.words import count_text

#: What stands for a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "#n/a", "null", "none", "-", "."})
#: A header is looked for in so many rows.
HEADER_WITHIN = 20

_SEPARATORS = ("\t", ";", ",", "|", " ")
_LOOKED_AT = 40
_EXAMPLES = 3
_NUMBER = re.compile(r"[-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?")
_DECIMAL_COMMA = r"^[-+\u2212]?\d*,\d+(?:[eE][-+]?\d+)?$"
_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_GENE_KEY = re.compile(r"(?:gene|query|array)\d{0,2}")
_KEY = re.compile(rf"{_GENE_KEY.pattern}|genes|score|fitness|weight|p_value|sd|study|split")

Form = TypeVar("Form")


class BadRowsError(InputError):
    """Rows of a file that cannot be read, all of them at once; `kinds` counts them by kind."""

    kinds: dict[str, int]


class BadRows:
    """Collects what is wrong with the rows of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kinds: dict[str, list[tuple[int, str]]] = {}

    def add(self, kind: str, lines: Ints, written: Sequence[str]) -> None:
        """Note rows that are wrong in the same way, by their lines and what is written there."""
        if len(lines):
            found = zip(map(int, lines), map(str, written), strict=True)
            self._kinds.setdefault(kind, []).extend(found)

    def add_where(self, kind: str, table: Table, column: str, wrong: Bools) -> None:
        """Note the rows of a table whose field of a column is wrong."""
        self.add(kind, table.lines[wrong], table.frame[column].filter(pl.Series(wrong)).to_list())

    def refuse(self, fix: str = "") -> None:
        """Raise if any row is bad, with the number of each kind and three examples of it."""
        if not self._kinds:
            return
        said = []
        for kind, places in self._kinds.items():
            examples = "; ".join(f"line {line}: {what!r}" for line, what in places[:_EXAMPLES])
            more = ", …" if len(places) > _EXAMPLES else ""
            said.append(f"{kind} in {count_text(len(places), 'row')} ({examples}{more})")
        error = BadRowsError(
            "; ".join(said),
            code="bad-rows",
            where=self.path,
            line=min(line for places in self._kinds.values() for line, _ in places),
            fix=fix or "Correct them, or leave a field empty (or NA) where its value is missing.",
        )
        error.kinds = {kind: len(places) for kind, places in self._kinds.items()}
        raise error


@dataclass(frozen=True)
class Sheet:
    """The first rows of a table that are not blank, split in one way, and the way to the others."""

    path: Path
    rows: list[list[str]]
    lines: list[int]  # of the rows, from 1
    separator: str = ""  # empty in a workbook
    workbook: Workbook | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name of the sheet in its workbook; empty for a text."""
        return "" if self.workbook is None else self.workbook.sheet or ""

    @property
    def decimal_comma(self) -> bool:
        """Whether a comma between digits can be nothing else than a decimal comma."""
        return self.separator == ";"

    def headers(self) -> Iterator[tuple[int, list[str]]]:
        """Go through the rows that may be a header, as distinct names of columns."""
        for at in range(min(len(self.rows), HEADER_WITHIN)):
            yield at, self.header(at)

    def header(self, at: int) -> list[str]:
        """Return the fields of a row as distinct names of columns.

        R leaves out the name of the column of row names, so a header that is one field short
        gets an empty first one.
        """
        fields = [name.strip() for name in self.rows[at]]
        if at + 1 < len(self.rows) and len(fields) + 1 == len(self.rows[at + 1]):
            fields = ["", *fields]
        fields[0] = fields[0].removeprefix("#").strip()
        names: dict[str, None] = {}
        for i, name in enumerate(fields, 1):
            unique = name or f"column {i}"
            names[f"{unique} ({i})" if unique in names else unique] = None
        return list(names)

    def below(self, at: int | None, bad: BadRows) -> tuple[Table, dict[str, int | str]]:
        """Return the rows below a header with notes on the form of the file.

        Rows with another number of fields are added to `bad` and left out; rows without any
        value are left out.
        """
        names = list(map(str, range(1, len(self.rows[0]) + 1))) if at is None else self.header(at)
        notes: dict[str, int | str] = {"sheet": self.name} if self.name else {}
        if at:
            notes["lines_above_the_header"] = self.lines[at] - 1
        if self.workbook is not None:
            table = self.workbook.below(-1 if at is None else self.lines[at] - 1, names)
        else:
            table, encoding = self._text_below(0 if at is None else self.lines[at], names, bad)
            notes |= {"encoding": encoding} if encoding else {}
        filled = table.frame.select(~pl.all_horizontal(pl.all().str.strip_chars() == ""))
        kept = filled.to_series().to_numpy() if len(table) else np.zeros(0, dtype=bool)
        frame = table.frame.filter(pl.Series(kept, dtype=pl.Boolean))
        return Table(frame, self.path, table.lines[kept], table.sha256), notes

    def _text_below(self, skip: int, names: list[str], bad: BadRows) -> tuple[Table, str]:
        text = open_text(self.path)
        data, encoding = as_utf8(text.data)
        body = data.split(b"\n", skip)[skip] if data.count(b"\n") >= skip else b""
        separator = self.separator
        if separator == " " or b'"' in body:
            lines = body.decode().split("\n")
            body = "\n".join(UNIT.join(fields_of(line, separator)) for line in lines).encode()
            separator = UNIT
        body, at = without_blank_lines(body)
        if not len(at):
            return Table(
                pl.DataFrame(schema=dict.fromkeys(names, pl.String)), self.path, at, text.sha256
            ), encoding
        wrong = line_widths(body, separator) != len(names)
        if wrong.any():
            rows = body.decode().split("\n")[: len(at)]
            shown = [rows[i].replace(separator, self.separator)[:80] for i in np.flatnonzero(wrong)]
            bad.add(f"other than {len(names)} columns", at[wrong] + skip, shown)
            kept = [row for row, is_wrong in zip(rows, wrong, strict=True) if not is_wrong]
            body, at = ("\n".join(kept) + "\n").encode(), at[~wrong]
            if not kept:
                bad.refuse("Every row has another number of fields than the header.")
        table = read_table(Text(self.path, text.sha256, body), separator=separator, columns=names)
        return Table(table.frame, self.path, at + skip, text.sha256), encoding


def sheets(path: str | os.PathLike[str]) -> list[Sheet]:
    """Return the ways to split a file into rows: its sheets, or one per separator it may have.

    A file that is neither text, plain or compressed, nor a workbook has no sheets.
    """
    path = Path(path)
    workbook = open_workbook(path, "")
    if workbook is not None:
        books = [workbook.with_sheet(name) for name in workbook.sheet_names()]
        tops = [[(n, row) for n, row in enumerate(b.top(), 1) if any(row)] for b in books]
        return [
            Sheet(path, [row for _, row in top], [n for n, _ in top], "", book)
            for book, top in zip(books, tops, strict=True)
            if top
        ]
    head = [] if holds_several_files(path) else peek(path, _LOOKED_AT)
    if any("\0" in line for line in head):
        return []
    written = [(number, line) for number, line in enumerate(head, 1) if line.strip()]
    return [
        Sheet(
            path,
            [[f.strip() for f in fields_of(line, separator)] for _, line in written],
            [number for number, _ in written],
            separator,
        )
        for separator in _SEPARATORS
        if any(separator in line.strip() for _, line in written)
    ]


def forms_in(
    path: str | os.PathLike[str], ways: Sequence[Callable[[Sheet], Form | None]]
) -> list[Form]:
    """Return what the first way that fits makes of a file; of a workbook, of each of its sheets."""
    found = sheets(path)
    if any(sheet.workbook is not None for sheet in found):
        each = [next((form for way in ways if (form := way(s))), None) for s in found]
        return [form for form in each if form is not None]
    return [form for way in ways for sheet in found if (form := way(sheet))][:1]


def as_utf8(data: bytes) -> tuple[bytes, str]:
    """Return a text as UTF-8 with plain line ends, and its encoding where it was another."""
    encoding = ""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data, encoding = data.decode("utf-16", errors="replace").encode(), "UTF-16"
    else:
        data = data.removeprefix(codecs.BOM_UTF8)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            data, encoding = data.decode("cp1252", errors="replace").encode(), "Latin-1"
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), encoding


def word(header: str) -> str:
    """Return the name of a column in lower case, without blanks and punctuation."""
    return re.sub(r"[\W_]+", "", header.lower())


def is_number(written: str) -> bool:
    """Whether a field is a number, with a point or a comma."""
    return _NUMBER.fullmatch(written.replace("\u2212", "-")) is not None


def is_missing(written: pl.Series) -> Bools:
    """Return which fields stand for a missing value."""
    missing: Bools = written.str.strip_chars().str.to_lowercase().is_in(list(MISSING)).to_numpy()
    return missing


def numbers_of(written: pl.Series, *, decimal_comma: bool) -> tuple[Doubles, Bools]:
    """Return a column as numbers, NaN where missing, and which fields are neither.

    Decimal commas are read as such where no number of the column has a point, and where they
    cannot separate thousands, which `decimal_comma` rules out.
    """
    written = written.str.strip_chars()
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


@dataclass(frozen=True)
class ColumnNames:
    """What the user says that the columns of a table are: ``gene1=ORF 1,gene2=ORF 2,score=x``."""

    names: Mapping[str, str]  # by key, the name of a column or its number from 1

    @classmethod
    def parse(cls, written: str) -> ColumnNames:
        """Parse ``KEY=COLUMN,KEY=COLUMN``; a name may hold commas that no ``KEY=`` follows."""
        names: dict[str, str] = {}
        for part in re.split(r",\s*(?=[A-Za-z_]+\d*\s*=)", written.strip()):
            key, equals, name = part.partition("=")
            key = key.strip().lower()
            if not equals or not name.strip() or not _KEY.fullmatch(key) or key in names:
                raise InputError(
                    f"--columns {written!r}: {part!r} is not of the form KEY=COLUMN",
                    code="bad-columns",
                    fix="The keys are gene1, gene2, … or query, array or genes, score or fitness "
                    "or weight, p_value, sd, study, split; each once.",
                )
            names[key] = name.strip()
        found = cls(names)
        if len(found.genes) < 2 and "genes" not in names:
            raise InputError(
                f"--columns {written!r} does not name two columns of genes",
                code="bad-columns",
                fix="Example: --columns gene1=ORF,gene2=Partner,score=S",
            )
        return found

    @property
    def genes(self) -> list[str]:
        """The keys of the columns of genes."""
        return [key for key in self.names if _GENE_KEY.fullmatch(key) or key == "genes"]

    def at(self, header: Sequence[str]) -> dict[str, int] | None:
        """Return the position of each column; None where the header lacks one of the names."""
        there = {name.strip().lower(): i for i, name in reversed(list(enumerate(header)))}
        found = {key: there.get(name.lower()) for key, name in self.names.items()}
        return None if None in found.values() else {k: i for k, i in found.items() if i is not None}

    @property
    def are_numbers(self) -> bool:
        """Whether the columns are given by their numbers, as those without a header are."""
        return all(name.isdigit() and int(name) > 0 for name in self.names.values())

    def fit(self, row: Sequence[str], at: Mapping[str, int]) -> bool:
        """Whether a row has names where genes are meant and a number where the score is."""
        number = next(at[key] for key in ("score", "fitness", "weight") if key in at)
        return is_number(row[number]) and not any(is_number(row[at[key]]) for key in self.genes)

    def find(self, sheet: Sheet) -> tuple[int | None, dict[str, int]] | None:
        """Return the row of the header in a sheet and the position of each column, or None."""
        if self.are_numbers:
            at = self.at([str(i) for i in range(1, len(sheet.rows[0]) + 1)])
            if at is not None and self.fit(sheet.rows[0], at):
                return None, at
        return next(((row, at) for row, names in sheet.headers() if (at := self.at(names))), None)
