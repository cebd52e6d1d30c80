"""Readers of screens, one file a format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from deltacell.screen.readers import costanzo2010, costanzo2016, headed, hits, kuzmin
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import holds_several_files, open_workbook, peek

__all__ = ["SCREEN_READERS", "ScreenReader", "WrittenScreen", "reader", "recognise"]


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


#: The formats that are told by their contents, asked in this order. Any other table is read by
#: `deltacell.screen.readers.delimited`, which has to be told what its columns mean.
SCREEN_READERS: tuple[ScreenReader, ...] = (kuzmin, costanzo2016, costanzo2010, hits, headed)


def recognise(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the reader that knows a file's format, told by its contents.

    Parameters
    ----------
    path
        The file: plain, gzip or zip, or a workbook. One that cannot be unpacked is an error.
    """
    workbook = open_workbook(path, kuzmin.WORKBOOK)
    if workbook is None and holds_several_files(path):
        return None
    name = Path(path).name
    if workbook is not None:
        return kuzmin.NAME if kuzmin.recognise(workbook.head(), name) else None
    head = peek(path)
    return next((r.NAME for r in SCREEN_READERS if r.recognise(head, name)), None)


def reader(name: str) -> ScreenReader:
    """Return a reader by its name."""
    return next(r for r in SCREEN_READERS if name == r.NAME)
