"""Plain edge lists: two genes a row, and perhaps a weight."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import polars as pl

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import first_line, stem_of
from deltacell.cell.readers.names import names_in
from deltacell.errors import InputError
from deltacell.table import ABSENT, Table, Text, open_text, read_table

NAME = "edge_list"

#: Why a row is left out whose weight is empty.
NO_WEIGHT = "no weight"

_SEPARATORS = ("\t", ",", " ")
_GENE = re.compile(r"[A-Za-z0-9](?:[\w.:@'()-]*[\w')])?")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_HEADER = re.compile(
    r"#?\s*(?:source|target|from|to|(?:gene|orf|protein|node|interactor|regulator|tf|factor|name|"
    r"id|systematic|query|array)(?:[ _.-]?(?:name|id|orf|a|b|i|j|x|y|\d|source|target))*|a|b|i|j|"
    r"x|y|u|v)",
    re.IGNORECASE,
)
_FIX_HEADER = "If the line is a header, say so (header=True) or remove it."


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the lines are two names, separated alike, with or without a number behind them.

    The first line may be a header. A number may be missing where others are there. Names that are
    numbers are not taken for genes. Of tabs and commas one line in five may be something else,
    which `read` then names: a file with a mistake near its beginning is not to be left alone
    without a word.
    """
    lines = [line for line in head if line.strip()]
    if not lines:
        return False
    separator = _separator(lines[0])
    if separator is None or (separator == " " and len(lines) < 2):
        return False
    rows = [_fields(line, separator) for line in lines]
    if _is_header(rows[0]):
        rows = rows[1:]
    wrong_at_most = 0 if separator == " " else len(rows) // 5
    edges = max(_edges(rows, width) for width in (2, 3))
    return edges > 0 and len(rows) - edges <= wrong_at_most


def read(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    directed: bool = False,
    header: bool | None = None,
) -> list[NamedEdges]:
    """Return the one relation of the file; the weight is the third column, where there is one.

    Rows whose weight is empty or ``NA`` are left out and counted.

    Parameters
    ----------
    path
        Two or three columns separated by tabs, commas or spaces.
    name
        What to call the relation. None: the file's name without its ending.
    directed
        Whether an edge goes from the first gene to the second.
    header
        Whether the first line is one. None: it is, if its names are words such as ``source``,
        ``gene1`` or ``orf_b``.
    """
    table = _table(open_text(path))
    if header is None:
        header = _is_header([str(field) for field in table.frame.row(0)])
    if header:
        table = Table(table.frame[1:], table.path, table.lines[1:], table.sha256)
    if not len(table):
        raise InputError("there is nothing below the header", where=table.path)
    weight, n_rows = None, len(table)
    if "weight" in table.frame.columns:
        written = str(table.frame["weight"][0]).strip()
        if not header and written not in ABSENT and not _NUMBER.fullmatch(written):
            raise table.error(0, f"the weight {written!r} is not a finite number", _FIX_HEADER)
        table = _weighted(table)
        weight = table.floats("weight")
    return [
        NamedEdges(
            name or stem_of(table.path.name),
            names_in(table, "source"),
            names_in(table, "target"),
            weight,
            directed=directed,
            path=table.path,
            lines=table.lines,
            sha256=table.sha256,
            reader=NAME,
            left_out={NO_WEIGHT: n_rows - len(table)},
        )
    ]


def _weighted(table: Table) -> Table:
    """Return the rows that have a weight."""
    there = ~table.frame["weight"].str.strip_chars().is_in(list(ABSENT)).to_numpy()
    if not there.any():
        raise InputError(
            "no row has a weight, and there is a column for it",
            where=table.path,
            fix="Remove the third column: a network needs no weights.",
        )
    return Table(table.frame.filter(pl.Series(there)), table.path, table.lines[there], table.sha256)


def _table(text: Text) -> Table:
    lines = text.data.decode("utf-8", errors="replace").lstrip("\ufeff").split("\n", 1000)
    first = first_line(lines)
    separator = _separator(first)
    if separator is None:
        if not first:
            raise InputError("the file is empty", where=text.path)
        raise InputError(
            f"no tab, comma or space separates two genes in '{first[:60].strip()}'",
            where=text.path,
            line=lines.index(first) + 1,
        )
    width = len(_fields(first, separator))
    if width not in (2, 3):
        raise InputError(
            f"{width} columns where 2 or 3 were expected",
            where=text.path,
            line=lines.index(first) + 1,
        )
    data = text.data.replace(b'"', b"")
    if separator == " ":
        data = re.sub(rb"(?m)^ +| +(?=\r?$)", b"", re.sub(rb" +", b" ", data))
    columns = ["source", "target", "weight"][:width]
    return read_table(Text(text.path, text.sha256, data), separator=separator, columns=columns)


def _separator(line: str) -> str | None:
    return next((s for s in _SEPARATORS if s in line.strip()), None)


def _fields(line: str, separator: str) -> list[str]:
    # A tab at the end stands before an empty field.
    written = line.split() if separator == " " else line.strip(" \r\n").split(separator)
    return [field.strip().strip('"').strip() for field in written]


def _edges(rows: Sequence[Sequence[str]], width: int) -> int:
    """Count the rows that are edges; those without their number count if another has one."""
    pairs = [
        row[2:]
        for row in rows
        if len(row) == width
        and all(_GENE.fullmatch(name) and not _NUMBER.fullmatch(name) for name in row[:2])
    ]
    whole = sum(all(_NUMBER.fullmatch(number) for number in numbers) for numbers in pairs)
    absent = sum(any(number in ABSENT for number in numbers) for numbers in pairs)
    return whole + absent if whole else 0


def _is_header(fields: Sequence[str]) -> bool:
    return all(_HEADER.fullmatch(field.strip()) for field in fields[:2])
