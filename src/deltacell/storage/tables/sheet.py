"""The first rows of a table, from which readers recognise it, and the rows below a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from deltacell.storage.tables.table import Table

if TYPE_CHECKING:
    from deltacell.storage.tables.file import File

#: The number of rows in which a header is searched for.
HEADER_WITHIN = 20

_UNIT = "\x1f"  # a separator that does not occur in text
_PUNCTUATION = re.compile(r"[\W_]+")


class Header(NamedTuple):
    """A row that may be the header of a table."""

    row: int  # among the rows of its sheet
    names: list[str]  # of its columns, which are distinct
    words: list[str]  # the names as words, see `word`


@dataclass(frozen=True)
class Sheet:
    """The first non-blank rows of a table, split at one separator, and access to the others."""

    file: File
    rows: list[list[str]]
    lines: list[int]  # of the rows, from 1
    separator: str = ""  # empty if the file is not text
    name: str = ""  # in its workbook

    @cached_property
    def headers(self) -> list[Header]:
        """The rows that may be the header."""
        headers = []
        for row in range(min(len(self.rows), HEADER_WITHIN)):
            names = self.header(row)
            headers.append(Header(row, names, [word(name) for name in names]))
        return headers

    def header(self, row: int) -> list[str]:
        """Return the fields of a row as distinct column names, ``column 8`` if one is empty."""
        fields = self.rows[row]
        # R omits the header of the column of row names.
        if row + 1 < len(self.rows) and len(fields) + 1 == len(self.rows[row + 1]):
            fields = ["", *fields]
        fields = [fields[0].removeprefix("#").strip(), *fields[1:]]
        names: dict[str, None] = {}
        for number, field in enumerate(fields, 1):
            name = field or f"column {number}"
            is_repeated = name in names
            names[f"{name} ({number})" if is_repeated else name] = None
        return list(names)

    def names(self, header_row: int | None) -> list[str]:
        """Return the column names of a header; without one, the column numbers from 1."""
        if header_row is None:
            return column_numbers(len(self.rows[0]))
        return self.header(header_row)

    def below(
        self,
        header_row: int | None,
        *,
        names: Sequence[str] = (),
        quotes: bool = True,
    ) -> Table:
        """Return the rows below a header; all rows if there is none.

        Rows with another number of fields are bad; blank rows are omitted.

        Args:
            header_row: The row of the header, as in `Header.row`.
            names: The names of the columns; by default those of the header.
            quotes: Whether fields can be quoted; otherwise a quotation mark is text.
        """
        names = names or self.names(header_row)
        last_line_above = 0 if header_row is None else self.lines[header_row]
        if self.separator:
            table = self._split(last_line_above, len(names), quotes)
        else:
            table = self.file.cells(self.name)
            table = table.take(table.lines > last_line_above)
        if self.name:
            table.notes["sheet"] = self.name
        frame = table.frame.select(pl.all().fill_null("").str.strip_chars())
        frame.columns = list(names)
        is_filled = frame.select(pl.any_horizontal(pl.all() != "")).to_series().to_numpy()
        table = replace(table, frame=frame, decimal_comma=self.separator == ";")
        return table.take(is_filled)

    def _split(self, last_line_above: int, n_columns: int, quotes: bool) -> Table:
        """Return the lines of a text file below a line, split into columns."""
        table = self.file.lines()
        table = table.take(table.lines > last_line_above)
        rows = table.frame["text"]
        separator = self.separator
        if quotes and rows.str.contains('"', literal=True).any():
            separator = _UNIT
            joined = [separator.join(fields_of(row, self.separator)) for row in rows]
            rows = pl.Series(joined, dtype=pl.String)
        elif separator == " ":
            rows = rows.str.strip_chars().str.replace_all(r"\s+", " ")
        n_separators = rows.str.count_matches(separator, literal=True)
        is_bad = (n_separators != n_columns - 1).to_numpy()
        table.mark_bad(f"other than {n_columns} columns", "text", is_bad)
        if len(is_bad) and is_bad.all():
            table.raise_if_bad("Every row has a different number of fields than the header.")
        fields = rows.filter(~is_bad).str.split_exact(separator, n_columns - 1)
        return replace(table.take(~is_bad), frame=fields.struct.unnest())


def column_numbers(n_columns: int) -> list[str]:
    """Return the names of columns without a header: their numbers, from 1."""
    return [str(number) for number in range(1, n_columns + 1)]


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
