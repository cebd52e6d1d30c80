"""STRING links with one combined score, of which the physical subnetwork is the usual one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.string_ids import orf_names, scores
from deltacell.table import read_table

NAME = "string_physical"

_COLUMNS = ["protein1", "protein2", "combined_score"]


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header names two proteins and their combined score, and nothing else."""
    return header_of(head, " ") == _COLUMNS


def read(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the one relation of the file: undirected, and its weight is the score / 1000.

    Parameters
    ----------
    path
        Space-separated, with a header. The full network has the same columns as the physical one
        and only its name, ``protein.links``, tells: that relation is called ``string_combined``.
    """
    table = read_table(path, separator=" ", required=_COLUMNS)
    full = "protein.links" in table.path.name
    return [
        NamedEdges(
            "string_combined" if full else "physical",
            orf_names(table, "protein1"),
            orf_names(table, "protein2"),
            scores(table, "combined_score"),
            directed=False,
            path=table.path,
            lines=table.lines,
            sha256=table.sha256,
            reader=NAME,
        )
    ]
