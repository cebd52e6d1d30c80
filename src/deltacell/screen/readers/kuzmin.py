"""Kuzmin 2018 Data S1 (text) and Kuzmin 2020 Table S1 (a workbook): digenic and trigenic crosses.

A query strain has two genes. ``YDL227C`` (HO) as one of them is a control that stands for no gene,
so such a row is digenic. Parts of the table are read too, as long as the strains and a score or a
fitness are there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.screen.columns import KINDS
from deltacell.screen.readers.sga import Columns, read_crosses
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import Table, open_text, open_workbook, read_table

NAME = "kuzmin"

#: Name of the workbook inside the zip that the journal hands out, which holds thirteen.
WORKBOOK = r"table[-_ ]?s1\.xlsx$"

COLUMNS_2018 = Columns(
    query="Query strain ID",
    array="Array strain ID",
    query_allele="Query allele name",
    array_allele="Array allele name",
    interaction="Adjusted genetic interaction score (epsilon or tau)",
    p_value="P-value",
    fitness="Combined mutant fitness",
    fitness_deviation="Combined mutant fitness standard deviation",
    query_fitness="Query single/double mutant fitness",
    array_fitness="Array single mutant fitness",
)
COLUMNS_2020 = replace(
    COLUMNS_2018,
    fitness="Double/triple mutant fitness",
    fitness_deviation="Double/triple mutant fitness standard deviation",
)

_TYPE = "Combined mutant type"
_STRAINS = (COLUMNS_2018.query, COLUMNS_2018.array)
_SCORES = {COLUMNS_2018.interaction, COLUMNS_2018.fitness, COLUMNS_2020.fitness}


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the first lines have the strain columns and a score or a fitness.

    Parameters
    ----------
    head
        First lines of the file; of a workbook, its first texts as one line.
    file_name
        Not looked at.
    """
    cells = {cell.strip() for line in head[:3] for cell in line.split("\t")}
    return cells.issuperset(_STRAINS) and not cells.isdisjoint(_SCORES)


def read(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a table of crosses.

    Parameters
    ----------
    path
        Text (plain, gzip or zip), a workbook, or the journal's zip of workbooks.
    study
        What to call the study; ``kuzmin2018`` or ``kuzmin2020``, by its columns, where not given.
    phenotype
        ``interaction`` (the adjusted score) or ``fitness`` (of the combined mutant). Where not
        given, the interaction if the file has it.
    """
    table = _table(Path(path))
    of_2020 = COLUMNS_2020.fitness in table.frame.columns
    written = read_crosses(
        table,
        COLUMNS_2020 if of_2020 else COLUMNS_2018,
        reader=NAME,
        study=study or ("kuzmin2020" if of_2020 else "kuzmin2018"),
        phenotype=phenotype,
        ho_is_control=True,
    )
    differ = _differing_types(table, written)
    return replace(written, notes={"combined_type_differs": differ}) if differ else written


def _differing_types(table: Table, written: WrittenScreen) -> int:
    """Count rows that the file calls trigenic and whose strains make them digenic, or so."""
    if _TYPE not in table.frame.columns:
        return 0
    called = table.strings(_TYPE).gather(np.searchsorted(table.lines, written.lines))
    called = called.str.strip_chars().str.to_lowercase()
    kinds = pl.Series(np.diff(written.offsets)).replace_strict(KINDS, default="")
    return int(((called != "") & (called != kinds)).sum())


def _table(path: Path) -> Table:
    workbook = open_workbook(path, WORKBOOK)
    if workbook is not None:
        return workbook.table(_STRAINS)
    return read_table(open_text(path), required=_STRAINS)
