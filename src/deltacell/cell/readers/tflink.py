"""TFLink: transcription factors and their targets, by name."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.names import names_in
from deltacell.table import read_table

NAME = "tflink"

NO_NAME = "no gene name"

_COLUMNS = ["Name.TF", "Name.Target"]


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header has the names of factor and target."""
    return set(_COLUMNS) <= set(header_of(head, "\t"))


def read(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the one relation of the file, ``tflink``: directed from factor to target, no weights.

    A protein that several genes encode has their names joined by ``;``; such a row gives an edge
    for each of them, and each counts as read. A row that has ``-`` for a name is left out.

    Parameters
    ----------
    path
        Tab-separated, with a header.
    """
    table = read_table(path, required=_COLUMNS)
    rows = pl.DataFrame(
        {
            "row": np.arange(len(table)),
            "factor": names_in(table, "Name.TF").str.split(";"),
            "target": names_in(table, "Name.Target").str.split(";"),
        }
    )
    edges = rows.explode("factor").explode("target")
    edges = edges.with_columns(pl.col("factor", "target").str.strip_chars())
    named = edges.filter(*(~pl.col(c).is_in(["", "-"]) for c in ("factor", "target")))
    return [
        NamedEdges(
            "tflink",
            named["factor"],
            named["target"],
            None,
            directed=True,
            path=table.path,
            lines=table.lines[named["row"].to_numpy()],
            sha256=table.sha256,
            reader=NAME,
            notes={"rows in the file": len(table)},
            left_out={NO_NAME: edges.height - named.height},
        )
    ]
