"""Readers of screens: published formats, tables of one's own, and any table through a mapping."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deltacell.screen.readers import delimited, tables
from deltacell.screen.readers.published import (
    WORKBOOK,
    Reader,
    costanzo2010,
    costanzo2016,
    hits,
    kuzmin,
)
from deltacell.screen.readers.written import WrittenScreen
from deltacell.sheet import ColumnNames
from deltacell.table import holds_several_files, open_workbook, peek

__all__ = [
    "SCREEN_READERS",
    "WrittenScreen",
    "costanzo2010",
    "costanzo2016",
    "delimited",
    "hits",
    "kuzmin",
    "reader",
    "recognise",
    "tables",
]

#: The formats of published screens, asked in this order; any other table is for `tables`.
SCREEN_READERS: tuple[Reader, ...] = (kuzmin, costanzo2016, costanzo2010, hits)


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> str | None:
    """Return the name of the reader that knows a file's format, by its contents.

    `columns` is what the user says the columns of a table are. A file that cannot be unpacked is
    an error.
    """
    workbook = open_workbook(path, WORKBOOK)
    if workbook is None and holds_several_files(path):
        return None
    head = peek(path) if workbook is None else workbook.head()
    for one in SCREEN_READERS if workbook is None else (kuzmin,):
        if one.recognise(head, Path(path).name):
            return one.NAME
    return tables.NAME if tables.recognise(path, columns) else None


def reader(name: str) -> Reader:
    """Return the reader of a published screen by its name."""
    return next(r for r in SCREEN_READERS if name == r.NAME)
