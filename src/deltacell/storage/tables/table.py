"""A table of text with line numbers, which collects what is wrong with its rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.base.plain_text import INVISIBLE, PlainText
from deltacell.base.text import count_text
from deltacell.storage.tables.numbers import numbers_of

_N_EXAMPLES = 3  # of the rows with one kind of error
_LONGEST_EXAMPLE = 80


class BadField(NamedTuple):
    """A field that cannot be read."""

    line: int  # of its row, from 1
    text: str


@dataclass(frozen=True)
class Table:
    """Columns of text, stripped of whitespace, and the line that each row came from."""

    frame: pl.DataFrame
    lines: Ints  # from 1
    path: Path
    sha256: str
    decimal_comma: bool = False  # whether a comma between digits is always a decimal comma
    notes: dict[str, int | str] = field(default_factory=dict)  # on the layout of the file
    _bad: dict[str, list[BadField]] = field(default_factory=dict, repr=False)  # by kind of error

    @classmethod
    def from_memory(cls, table: Any, name: str) -> Table:
        """Return a table in memory, see `frame_of`, as if it were a file with that name."""
        frame, notes = visible(as_texts(frame_of(table, name)))
        sha256 = hashlib.sha256(frame.write_csv().encode()).hexdigest()
        return cls(frame, np.arange(1, frame.height + 1), Path(name), sha256, notes=notes)

    def __len__(self) -> int:
        return self.frame.height

    def take(self, rows: Bools) -> Table:
        """Return the rows where a mask [rows] is true."""
        return replace(self, frame=self.frame.filter(pl.Series(rows)), lines=self.lines[rows])

    def numbers(self, column: str, *, required: bool = False) -> Doubles:
        """Return a column as finite numbers, NaN where missing; other fields are bad.

        If the number is `required`, a missing one is bad too.
        """
        numbers = numbers_of(self.frame[column], decimal_comma=self.decimal_comma)
        is_bad = numbers.is_bad
        if required:
            is_bad |= np.isnan(numbers.values)
        self.mark_bad(f"column '{column}' is not a finite number", column, is_bad)
        return numbers.values

    def check_not_repeated(self, column: str) -> None:
        """Raise if another column has the same header and other contents."""
        numbered = re.compile(rf"{re.escape(column)} \(\d+\)")
        repeated = [name for name in self.frame.columns if numbered.fullmatch(name)]
        if any(not self.frame[name].equals(self.frame[column]) for name in repeated):
            raise InputError(
                f"{len(repeated) + 1} columns are named '{column}' and differ",
                code="repeated-column",
                where=self.path,
                fix="Rename them, or remove all but one.",
                column=column,
            )

    def mark_bad(self, kind: str, column: str, is_bad: Any) -> None:
        """Record the rows whose field of a column is bad; `raise_if_bad` reports them.

        Args:
            kind: What is wrong with them, as in ``no gene name in column 'a'``.
            column: Whose fields are shown as examples.
            is_bad: A mask of rows, [rows].
        """
        rows = np.flatnonzero(is_bad)
        if len(rows):
            texts = self.frame[column].gather(rows).to_list()
            bad_fields = map(BadField, self.lines[rows].tolist(), texts)
            self._bad.setdefault(kind, []).extend(bad_fields)

    def raise_if_bad(self, fix: str = "") -> None:
        """Raise if any row is bad, with the count and three examples of each kind of error."""
        if not self._bad:
            return
        first_lines = [min(bad.line for bad in fields) for fields in self._bad.values()]
        raise InputError(
            "; ".join(_bad_rows_text(kind, fields) for kind, fields in self._bad.items()),
            code="bad-rows",
            where=self.path,
            line=min(first_lines),
            fix=fix or "Correct these rows; leave a field empty (or NA) if its value is missing.",
            kinds={kind: len(fields) for kind, fields in self._bad.items()},
        )


def _bad_rows_text(kind: str, fields: Sequence[BadField]) -> str:
    """Return one kind of error with the number of its rows and some of them."""
    examples = [f"line {bad.line}: {bad.text[:_LONGEST_EXAMPLE]!r}" for bad in fields[:_N_EXAMPLES]]
    more = ", …" if len(fields) > _N_EXAMPLES else ""
    return f"{kind} in {count_text(len(fields), 'row')} ({'; '.join(examples)}{more})"


def frame_of(table: Any, name: str) -> pl.DataFrame:
    """Convert a pandas or polars table, or columns by name, to polars; errors call it `name`."""
    try:
        if isinstance(table, pl.DataFrame):
            return table
        if hasattr(table, "to_dict") and hasattr(table, "columns"):
            table = {str(column): table[column].tolist() for column in table.columns}
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        message = f"'{name}' is not a table ({error})"
        fix = "Pass a pandas or polars data frame, or columns by name."
        raise InputError(message, code="not-a-table", fix=fix) from error


def as_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that are not nested as stripped text."""
    flat = frame.select(column for column in frame if not column.dtype.is_nested())
    texts = flat.with_columns(pl.col(pl.Boolean).cast(pl.Int8)).cast(pl.String)
    return texts.select(pl.all().fill_null("").str.strip_chars())


def visible(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int | str]]:
    """Return columns of text as `plain_text` leaves it, and notes on what was changed."""
    pattern = f"[{INVISIBLE}]"
    n_invisible = _total(frame.select(pl.all().str.count_matches(pattern).sum()))
    if n_invisible:
        frame = frame.with_columns(pl.all().str.replace_all(pattern, "").str.strip_chars())
    n_composed = _total(frame.select((pl.all() != pl.all().str.normalize("NFC")).sum()))
    if n_composed:
        frame = frame.with_columns(pl.all().str.normalize("NFC"))
    return frame, PlainText(b"", n_invisible=n_invisible, n_composed=n_composed).notes


def _total(counts: pl.DataFrame) -> int:
    """Return the sum of a table with one row of numbers, or none."""
    return sum(counts.fill_null(0).row(0)) if counts.height else 0
