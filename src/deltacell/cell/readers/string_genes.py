"""The gene list that goes with STRING adjacency files: one ORF a line, known by its line number."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.cell.readers.names import is_systematic, names_in
from deltacell.errors import InputError
from deltacell.table import read_table

NAME = "string_genes"


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether every line is one systematic name."""
    names = [line.strip() for line in head if line.strip()]
    return bool(names) and all(map(is_systematic, names))


def read(path: str | os.PathLike[str]) -> list[str]:
    """Return the names in order, so that line ``i`` is at ``i - 1``.

    Parameters
    ----------
    path
        The file. A header, a blank line between names or a name given twice is an error, because
        the line numbers would then mean something else.
    """
    table = read_table(path, columns=["gene"])
    names = names_in(table, "gene").to_list()
    for row, line in enumerate(table.lines, 1):
        if line != row:
            raise InputError(
                "a blank line shifts the numbers of the genes below it",
                where=table.path,
                line=row,
                fix="Remove the line, if the adjacency files do not count it.",
            )
    if not is_systematic(names[0]) and all(map(is_systematic, names[1:])) and len(names) > 1:
        raise table.error(
            0,
            f"'{names[0]}' is a header where none belongs, since genes are known by line number",
            fix="Remove the line.",
        )
    first_row: dict[str, int] = {}
    for row, name in enumerate(names):
        if first_row.setdefault(name.upper(), row) != row:
            raise table.error(
                row, f"the gene '{name}' stands twice, first in line {first_row[name.upper()] + 1}"
            )
    return names
