"""YEASTRACT: which transcription factor regulates which gene, by kind of evidence."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.names import names_in
from deltacell.errors import InputError
from deltacell.table import read_table

NAME = "yeastract"

_COLUMNS = ["tf_orf", "target_orf"]


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header begins with the regulator and its target."""
    return header_of(head, "\t")[:2] == _COLUMNS


def read(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the one relation of the file, ``regulatory``: directed from regulator to target.

    The weight is the number of evidence columns that are 1; a row with none is left out.

    Parameters
    ----------
    path
        Tab-separated, with a header. All columns but the first two are evidence, 0 or 1.
    """
    table = read_table(path, required=_COLUMNS)
    evidence = [column for column in table.frame.columns if column not in _COLUMNS]
    if not evidence:
        raise InputError(
            "there is no column of evidence beside 'tf_orf' and 'target_orf'", where=table.path
        )
    weight = np.zeros(len(table))
    for column in evidence:
        written = table.strings(column).str.strip_chars()
        wrong = ~written.is_in(["0", "1"]).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise table.error(row, f"column '{column}': '{written[row]}' is neither 0 nor 1")
        weight += (written == "1").to_numpy()
    shown = np.flatnonzero(weight > 0)
    at = pl.Series(shown, dtype=pl.UInt32)
    return [
        NamedEdges(
            "regulatory",
            names_in(table, "tf_orf").gather(at),
            names_in(table, "target_orf").gather(at),
            weight[shown],
            directed=True,
            path=table.path,
            lines=table.lines[shown],
            sha256=table.sha256,
            reader=NAME,
            left_out={"no evidence": len(table) - len(shown)},
        )
    ]
