"""Why a file of a folder is of no known format, where that can be told."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deltacell.cell.readers import edge_list, features_table
from deltacell.cell.readers.head import first_line
from deltacell.screen.readers import headed
from deltacell.table import holds_several_files, peek

_PAGE = "docs/how-to/screen.md"
_XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_SHEET_MEMBERS = ("xl/workbook.xml", "xl/workbook.bin", "content.xml")
_HEADER_WITHIN = 6
_DECIMAL_COMMA = re.compile(r"(?<![^\s;\"])([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)(?![^\s;\"])")


def why_unread(path: str | os.PathLike[str]) -> str:
    """Return why no reader recognises a file, and what to do about it.

    Parameters
    ----------
    path
        A file that is not empty and that no reader recognises.
    """
    path = Path(path)
    if _is_spreadsheet(path):
        return (
            "it is a spreadsheet without a table of genes and numbers on its first sheet; save a "
            f"screen or a network as CSV, with a header as in {_PAGE}"
        )
    if holds_several_files(path):
        return "it is a zip of several files; unpack it to have them read"
    head = peek(path)
    if any("\0" in line for line in head):
        return "it is not text, and of no known format"
    if first_line(head).lstrip()[:1] in ("{", "["):
        return "it is JSON, of no known format"
    reason = _told_by_repair(head) or headed.why_not(head)
    if reason is not None:
        return f"{reason}: {_PAGE}"
    return (
        "its content is of no known format; a table needs a header such as gene1,gene2,score "
        f"(a screen), gene1,gene2,weight (a network) or gene,fitness (a feature): {_PAGE}"
    )


def _is_spreadsheet(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(len(_XLS)) == _XLS:
            return True
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    return any(n in _SHEET_MEMBERS or n.lower().endswith((".xlsx", ".xls")) for n in names)


def _told_by_repair(head: Sequence[str]) -> str | None:
    """Return what is wrong with a table that would be known without it."""
    repairs: tuple[tuple[str, Callable[[str], str]], ...] = (
        ("its numbers have decimal commas; write them with points", _with_points),
        ("it is separated by semicolons; for a network use commas or tabs", _with_commas),
        (
            "its numbers have decimal commas; write them with points, and commas or tabs between "
            "the columns",
            lambda line: _with_commas(_with_points(line)),
        ),
    )
    for reason, repair in repairs:
        repaired = [repair(line) for line in head]
        if repaired != list(head) and _is_known(repaired):
            return reason
    for above in range(1, min(_HEADER_WITHIN, len(head) - 1)):
        if head[above].strip() and _is_known(head[above:]):
            return f"a table begins at line {above + 1}; remove what stands above it"
    if any(features_table.recognise_head([line, *head]) for line in _headers_for(head)):
        return "it has genes and numbers and no header; put one above it, such as gene,fitness"
    return None


def _headers_for(head: Sequence[str]) -> list[str]:
    """Return a header that a table of genes and numbers would have, for each separator."""
    return [
        separator.join(["gene", *(f"value {chr(97 + i % 26)}{i}" for i in range(width))])
        for separator in ("\t", ";", ",")
        if head and (width := head[0].count(separator))
    ]


def _with_points(line: str) -> str:
    return _DECIMAL_COMMA.sub(r"\1.\2", line)


def _with_commas(line: str) -> str:
    return line.replace(";", ",")


def _is_known(head: Sequence[str]) -> bool:
    return (
        headed.recognise(head, "")
        or edge_list.recognise(head, "")
        or features_table.recognise_head(head)
    )
