"""BioGRID-style edge lists: two ORFs a row under the header ``orf1 orf2``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.names import names_in
from deltacell.table import read_table

NAME = "biogrid"

_COLUMNS = ["orf1", "orf2"]


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header is ``orf1`` and ``orf2``, and nothing else."""
    return header_of(head, "\t") == _COLUMNS


def read(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the one relation of the file, ``biogrid``: undirected, without weights.

    Parameters
    ----------
    path
        Tab-separated, with a header.
    """
    table = read_table(path, required=_COLUMNS)
    return [
        NamedEdges(
            "biogrid",
            names_in(table, "orf1"),
            names_in(table, "orf2"),
            None,
            directed=False,
            path=table.path,
            lines=table.lines,
            sha256=table.sha256,
            reader=NAME,
        )
    ]
