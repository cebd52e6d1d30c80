"""Readers of screens, one file a format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from deltacell.screen.readers import costanzo2010, costanzo2016, hits, kuzmin, tables
from deltacell.screen.readers.written import WrittenScreen
from deltacell.sheet import ColumnNames
from deltacell.table import holds_several_files, open_workbook, peek

__all__ = ["SCREEN_READERS", "ScreenReader", "WrittenScreen", "reader", "recognise", "tables"]


class ScreenReader(Protocol):
    """What every reader of a screen offers."""

    NAME: str

    def recognise(self, head: Sequence[str], file_name: str) -> bool:
        """Whether the first lines of a file are of this format."""

    def read(
        self,
        path: str | os.PathLike[str],
        *,
        study: str | None = None,
        phenotype: str | None = None,
    ) -> WrittenScreen:
        """Read a file."""


#: The formats of published screens, asked in this order. Any other table is for
#: `deltacell.screen.readers.tables`, or for `delimited`, which is told what the columns mean.
SCREEN_READERS: tuple[ScreenReader, ...] = (kuzmin, costanzo2016, costanzo2010, hits)


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> str | None:
    """Return the name of the reader that knows a file's format, told by its contents.

    Parameters
    ----------
    path
        The file: plain, gzip or zip, or a workbook. One that cannot be unpacked is an error.
    columns
        What the user says the columns of a table are.
    """
    workbook = open_workbook(path, kuzmin.WORKBOOK)
    if workbook is None and holds_several_files(path):
        return None
    head = peek(path) if workbook is None else workbook.head()
    if workbook is None or kuzmin.recognise(head, Path(path).name):
        for reader in SCREEN_READERS:
            if reader.recognise(head, Path(path).name):
                return reader.NAME
    return tables.NAME if tables.recognise(path, columns) else None


def reader(name: str) -> ScreenReader:
    """Return the reader of a published screen by its name."""
    return next(r for r in SCREEN_READERS if name == r.NAME)
