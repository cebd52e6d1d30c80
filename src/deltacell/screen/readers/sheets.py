"""Reading an xlsx workbook, alone or inside a zip, into the same columns of strings as text."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.errors import InputError, MissingExtraError
from deltacell.table import Table

_ZIP = b"PK\x03\x04"
_IS_WORKBOOK = "[Content_Types].xml"
_HEADER_WITHIN = 20
_CELL_TEXT = re.compile(r"<t(?: [^>]*)?>([^<]*)</t>")


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
    """

    path: Path
    sha256: str
    data: bytes

    def head(self) -> list[str]:
        """Return the first texts of its cells as one line, separated by tabs.

        This unpacks no more than a little and needs no extra.
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
        if importlib.util.find_spec("fastexcel") is None:
            raise MissingExtraError("Reading xlsx", "xlsx")
        top = self._read(n_rows=_HEADER_WITHIN, skip_rows=0, dtypes="string")
        rows = [[(cell or "").strip() for cell in row] for row in top.iter_rows()]
        at = next((i for i, row in enumerate(rows) if set(required) <= set(row)), None)
        if at is None:
            raise InputError(
                f"none of the first {_HEADER_WITHIN} rows of the sheet is a header with "
                + ", ".join(f"'{name}'" for name in required),
                where=self.path,
            )
        columns = [name or f"column {i + 1}" for i, name in enumerate(rows[at])]
        if len(set(columns)) != len(columns):
            raise InputError(
                "a column name stands twice in the header", where=self.path, line=at + 1
            )
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
            if _IS_WORKBOOK in names:
                return Workbook(path, hashlib.sha256(raw).hexdigest(), raw)
            books = [n for n in names if n.lower().endswith(".xlsx") and not _is_hidden(n)]
            meant = [n for n in books if re.search(member, Path(n).name, re.IGNORECASE)]
            chosen = meant if len(books) > 1 else books
            if len(chosen) != 1:
                return None
            return Workbook(path, hashlib.sha256(raw).hexdigest(), archive.read(chosen[0]))
    except zipfile.BadZipFile as error:
        raise InputError(f"the zip file is damaged ({error})", where=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or Path(name).name.startswith((".", "~$"))
