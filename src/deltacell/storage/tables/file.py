"""A source file of any kind, and the sheets that it contains."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl

from deltacell.base.errors import InputError, need
from deltacell.base.plain_text import plain_text
from deltacell.storage.tables.columns import ColumnNames
from deltacell.storage.tables.sheet import HEADER_WITHIN, Sheet, fields_of
from deltacell.storage.tables.table import Table, as_texts, visible
from deltacell.storage.tables.unpack import ZIP_START, open_text, reading, unpacked

Form = TypeVar("Form")

_SEPARATORS = ("\t", ";", ",", "|", " ")
_PARQUET_START = b"PAR1"
# From which sheets are recognised.
_N_FIRST_LINES = 40
_N_FIRST_BYTES = 1 << 20
# JSON and XML, whose long lines would take seconds to parse as tables.
_NO_TABLE = re.compile(r"\s*(\{\s*(\"\w+\":|$)|\[\s*(\{|$)|<(\?xml|!DOCTYPE|sbml)\b)")


class File:
    """A source file, read lazily.

    Args:
        path: The file.
        columns: What the columns of some tables mean, as given by the user.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> None:
        self.path = Path(path)
        self.columns = columns

    @cached_property
    def _start(self) -> bytes:
        """The first bytes, decompressed; empty for a zip of several files."""
        try:
            with unpacked(self.path) as file:
                return file.read(_N_FIRST_BYTES)
        except InputError as error:
            if error.code != "several-files":
                raise
            return b""

    @cached_property
    def head(self) -> list[str]:
        """The first lines of a text file; empty if the file is not text."""
        start = b"" if self.is_workbook else self._start
        if len(start) == _N_FIRST_BYTES:
            start = start[: start.rfind(b"\n") + 1] or start  # without an incomplete line
        lines = plain_text(start).utf8.decode().split("\n", _N_FIRST_LINES)[:_N_FIRST_LINES]
        is_binary = any("\0" in line for line in lines)
        return [] if is_binary else lines

    @cached_property
    def sheets(self) -> list[Sheet]:
        """The ways to split the file into rows: its sheets, or one per possible separator."""
        if self.is_workbook:
            return self._sheets_of_workbook()
        if self._start.startswith(_PARQUET_START):
            return self._sheet_of_parquet()
        return self._sheets_of_text()

    def _sheets_of_workbook(self) -> list[Sheet]:
        sheets = []
        for name in self._book.sheet_names:
            top = self._cells(name, "string", HEADER_WITHIN)
            sheets += self._sheet_of_cells(top, first_line=1, name=name)
        return sheets

    def _sheet_of_parquet(self) -> list[Sheet]:
        frame = self.cells("").frame
        header = pl.DataFrame({name: [name] for name in frame.columns})
        top = pl.concat([header, frame.head(_N_FIRST_LINES)])
        return self._sheet_of_cells(top, first_line=0, name="")  # the rows below the header from 1

    def _sheet_of_cells(self, top: pl.DataFrame, *, first_line: int, name: str) -> list[Sheet]:
        """Return the first rows of a table as a sheet without blank rows; none if all are blank."""
        rows = []
        lines = []
        for line, cells in enumerate(top.rows(), first_line):
            row = [(cell or "").strip() for cell in cells]
            if any(row):
                rows.append(row)
                lines.append(line)
        return [Sheet(self, rows, lines, name=name)] if rows else []

    def _sheets_of_text(self) -> list[Sheet]:
        line_of = {number: line for number, line in enumerate(self.head, 1) if line.strip()}
        texts = list(line_of.values())
        if not texts or _NO_TABLE.match(texts[0]):
            return []
        sheets = []
        for separator in _SEPARATORS:
            if any(separator in text.strip() for text in texts):
                rows = [fields_of(text, separator) for text in texts]
                sheets.append(Sheet(self, rows, list(line_of), separator))
        return sheets

    def forms(self, ways: Sequence[Callable[[Sheet], Form | None]]) -> list[Form]:
        """Return the first form that fits the file or, for a workbook, each of its sheets.

        Args:
            ways: Functions that return the form of a sheet, or None if it has another; an earlier
                one is preferred.
        """
        groups = [[sheet] for sheet in self.sheets] if self.is_workbook else [self.sheets]
        forms = [_first_form(ways, sheets) for sheets in groups]
        return [form for form in forms if form is not None]

    def lines(self) -> Table:
        """Return the non-blank lines of a text file as a table with one column ``text``."""
        content = open_text(self.path)
        text = plain_text(content.data)
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
        table = Table(frame, lines, self.path, content.sha256, notes=text.notes)
        return table.take(frame["text"].is_not_null().to_numpy())

    def cells(self, sheet: str) -> Table:
        """Return all cells of a workbook's sheet, or of a Parquet file, as text."""
        content = open_text(self.path)
        if self.is_workbook:
            frame = self._cells_as_text(sheet)
        else:
            with reading(self.path):
                frame = as_texts(pl.read_parquet(io.BytesIO(content.data)))
        frame, notes = visible(frame)
        lines = np.arange(1, frame.height + 1)
        return Table(frame, lines, self.path, content.sha256, notes=notes)

    def _cells_as_text(self, sheet: str) -> pl.DataFrame:
        """Return the cells of a workbook's sheet, numbers with all their digits."""
        # Numbers read as text are rounded (1e-12 is "0"), so numbers are read as numbers.
        numbers = self._cells(sheet, "float")
        texts = self._cells(sheet, "string")
        exact = numbers.cast(pl.String).select(pl.all().str.replace(r"\.0$", ""))
        return pl.select(
            pl.coalesce(column, texts[column.name]).alias(column.name) for column in exact
        )

    @property
    def is_workbook(self) -> bool:
        """Whether the file is an xlsx workbook, or a zip that contains one."""
        return self._start.startswith(ZIP_START)

    @cached_property
    def _book(self) -> Any:
        """The workbook, as an ``ExcelReader`` of fastexcel."""
        need("fastexcel", "Reading xlsx", "xlsx")
        import fastexcel

        with reading(self.path):
            return fastexcel.read_excel(open_text(self.path).data)

    def _cells(self, sheet: str, kind: str, most_rows: int | None = None) -> pl.DataFrame:
        """Return the cells of a sheet of a workbook as ``float`` or ``string``."""
        with reading(self.path):
            cells = self._book.load_sheet(sheet, header_row=None, n_rows=most_rows, dtypes=kind)
            return cast(pl.DataFrame, cells.to_polars())


def _first_form(
    ways: Sequence[Callable[[Sheet], Form | None]],
    sheets: Sequence[Sheet],
) -> Form | None:
    """Return the form that the first way finds in the first sheet."""
    for way in ways:
        for sheet in sheets:
            form = way(sheet)
            if form is not None:
                return form
    return None
