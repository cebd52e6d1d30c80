"""What the files of STRING have in common: taxon prefixes and scores of up to 1000."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.cell.readers.names import names_in
from deltacell.table import Table


def orf_names(table: Table, column: str) -> pl.Series:
    """Return a column of STRING identifiers without their taxon: ``4932.YDL227C`` is YDL227C."""
    return names_in(table, column).str.replace(r"^\d+\.", "")


def scores(table: Table, column: str) -> npt.NDArray[np.float64]:
    """Return a column of scores as numbers from 0 to 1."""
    written = table.floats(column)
    outside = (written < 0) | (written > 1000)
    if outside.any():
        row = int(outside.argmax())
        raise table.error(
            row, f"column '{column}': the score {written[row]:g} is not between 0 and 1000"
        )
    return written / 1000
