"""Reading the fields of a screen's file: which phenotype, which rows have a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Ints
from deltacell.errors import InputError, PhenotypeError
from deltacell.table import Table

#: Why a reader drops a row whose score field is empty.
NO_SCORE = "no score"


def checked_phenotype(phenotype: str | None, there: Mapping[str, str], table: Table) -> str:
    """Return the phenotype to read: the one asked for, or the first that the file has.

    Parameters
    ----------
    phenotype
        What was asked for.
    there
        The column of each phenotype that the reader knows.
    table
        The file.
    """
    if phenotype is None:
        phenotype = next((p for p, column in there.items() if column in table.frame.columns), None)
        if phenotype is None:
            expected = " or ".join(f"'{column}'" for column in there.values())
            raise InputError(
                f"no column {expected}; there are {', '.join(table.frame.columns)}",
                where=table.path,
                line=_header_line(table),
            )
    if phenotype not in there:
        raise PhenotypeError(
            f"no phenotype '{phenotype}' can be read from this format; there is "
            + " and ".join(there),
            where=table.path,
        )
    if there[phenotype] not in table.frame.columns:
        raise PhenotypeError(
            f"the {phenotype} was asked for and there is no column '{there[phenotype]}'; there are "
            + ", ".join(f"'{c}'" for c in table.frame.columns),
            where=table.path,
            line=_header_line(table),
        )
    return phenotype


def scored_rows(table: Table, column: str) -> tuple[AnyArray, Ints]:
    """Return the scores of the rows that have one, and which rows those are.

    An empty field is no score; anything else that is not a finite number, NaN included, is an
    error with its line.
    """
    empty = (table.strings(column).str.strip_chars() == "").to_numpy()
    rows = np.flatnonzero(~empty)
    part = Table(table.frame[rows], table.path, table.lines[rows], table.sha256)
    return part.floats(column), rows


def optional_floats(table: Table, column: str | None, rows: Ints) -> AnyArray | float:
    """Return some rows of a column of numbers that may be missing, or NaN without the column."""
    if column is None or column not in table.frame.columns:
        return np.nan
    return table.floats(column, missing=True)[rows]


def one_of(
    values: pl.Series,
    allowed: Sequence[str],
    what: str,
    table: Table | None = None,
    rows: Ints | None = None,
) -> None:
    """Raise where a value is none of the allowed ones, with its line.

    Parameters
    ----------
    values
        What is written.
    allowed
        What may be.
    what
        What to call it.
    table
        The file, where they are from one.
    rows
        The row of each value, where it is not its position.
    """
    wrong = ~values.is_in(list(allowed)).to_numpy()
    if wrong.any():
        at = int(np.argmax(wrong))
        row = at if rows is None else int(rows[at])
        raise InputError(
            f"{what}: {values[at]!r} is none of {', '.join(repr(a) for a in allowed)}",
            where=None if table is None else table.path,
            line=None if table is None else int(table.lines[row]),
        )


def _header_line(table: Table) -> int | None:
    return int(table.lines[0]) - 1 if len(table) else None
