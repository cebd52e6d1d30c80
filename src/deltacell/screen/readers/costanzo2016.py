"""Costanzo 2016 SGA files (NxN, ExE, ExN_NxE, DAmP): digenic crosses on two arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.cell.readers.names import header_of
from deltacell.screen.readers.sga import Columns, read_crosses
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import read_table

NAME = "costanzo2016"

COLUMNS = Columns(
    query="Query Strain ID",
    array="Array Strain ID",
    query_allele="Query allele name",
    array_allele="Array allele name",
    interaction="Genetic interaction score (\u03b5)",
    p_value="P-value",
    fitness="Double mutant fitness",
    fitness_deviation="Double mutant fitness standard deviation",
    query_fitness="Query single mutant fitness (SMF)",
    array_fitness="Array SMF",
)

#: Which array, and at which temperature: ``DMA26`` is the deletion array at 26 degrees.
PANEL = "Arraytype/Temp"


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the first line has the strain columns, the score and the array's type.

    Parameters
    ----------
    head
        First lines of the file.
    file_name
        Not looked at.
    """
    cells = set(header_of(head, "\t"))
    return cells.issuperset({COLUMNS.query, COLUMNS.array, COLUMNS.interaction, PANEL})


def read(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read an SGA file.

    Parameters
    ----------
    path
        The file.
    study
        What to call the study; ``costanzo2016`` where not given.
    phenotype
        ``interaction`` or ``fitness`` (of the double mutant); the interaction where not given.
    """
    table = read_table(path, required=[COLUMNS.query, COLUMNS.array, PANEL])
    return read_crosses(
        table,
        COLUMNS,
        reader=NAME,
        study=study or NAME,
        phenotype=phenotype,
        # The two temperatures are one array: what was crossed is the same.
        panel=table.strings(PANEL).str.extract(r"^\s*([A-Za-z]*)"),
    )
