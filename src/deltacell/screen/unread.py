"""Why a file of a folder is of no known format, where that can be told."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from deltacell.cell.readers.features import is_feature_table
from deltacell.cell.readers.names import first_line
from deltacell.sheet import sheets
from deltacell.table import holds_several_files, peek

_PAGE = "docs/how-to/screen.md"
_XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OTHER_SHEETS = ("xl/workbook.bin", "content.xml")


def why_unread(path: str | os.PathLike[str]) -> str:
    """Return why no reader recognises a file, and what to do about it.

    Parameters
    ----------
    path
        A file that is not empty and that no reader recognises.
    """
    path = Path(path)
    if _is_other_spreadsheet(path):
        return "it is a spreadsheet of another kind; save it as xlsx or CSV"
    if holds_several_files(path):
        return "it is a zip of several files; unpack it to have them read"
    found = sheets(path)
    named = [sheet.name for sheet in found if sheet.name]
    if named:
        return (
            f"none of its sheets ({', '.join(named)}) is a table of genes with a header as in "
            f"{_PAGE}"
        )
    head = peek(path)
    if any("\0" in line for line in head):
        return "it is not text, and of no known format"
    if first_line(head).lstrip()[:1] in ("{", "["):
        return "it is JSON, of no known format"
    for sheet in found:
        width = len(sheet.rows[0])
        header = ["gene", *(f"value {chr(97 + i % 26)}{i}" for i in range(width - 1))]
        if len(sheet.rows) > 1 and is_feature_table([header, *sheet.rows]):
            return (
                "it has genes and numbers and no header; put one above it, such as gene,fitness: "
                + _PAGE
            )
    return (
        "its content is of no known format; a table needs a header such as gene1,gene2,score "
        "(a screen), gene1,gene2,weight (a network), gene,fitness (a feature) or gene,term (an "
        f"annotation): {_PAGE}"
    )


def _is_other_spreadsheet(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(len(_XLS)) == _XLS:
            return True
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name in _OTHER_SHEETS for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
