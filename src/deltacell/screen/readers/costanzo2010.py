"""Costanzo 2010 lists of digenic hits: seven columns without a header."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import polars as pl

from deltacell.cell.readers.names import header_of
from deltacell.errors import InputError
from deltacell.screen.readers.fields import checked_phenotype
from deltacell.screen.readers.strains import Strains, crossed, parse_strains
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import Table, read_table

NAME = "costanzo2010"

COLUMNS = (
    "query ORF",
    "query gene",
    "array ORF",
    "array gene",
    "epsilon",
    "standard deviation",
    "p-value",
)

_ORF = re.compile(r"[YQ][A-Z0-9]+(-[A-Z])?(_[A-Za-z]+\d*)?", re.ASCII)


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether one of the first lines is two ORFs with their names, then three numbers.

    A header or a damaged line above it does not hide the file from the reader, which names them.

    Parameters
    ----------
    head
        First lines of the file.
    file_name
        Not looked at.
    """
    lines = [line for line in head if line.strip()]
    return any(_is_row(header_of([line], "\t")) for line in lines[:3])


def read(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a list of hits.

    Parameters
    ----------
    path
        The file.
    study
        What to call the study; ``costanzo2010`` where not given.
    phenotype
        Only ``interaction`` is there.
    """
    table = read_table(path, columns=COLUMNS)
    _refuse_header(table)
    phenotype = checked_phenotype(phenotype, {"interaction": "epsilon"}, table)
    crosses = crossed(_strains(table, "query"), _strains(table, "array"))
    return WrittenScreen(
        crosses.names,
        crosses.offsets,
        crosses.role,
        crosses.perturbation,
        crosses.allele,
        table.lines,
        table.path,
        table.sha256,
        NAME,
        study or NAME,
        phenotype,
        score=table.floats("epsilon"),
        standard_deviation=table.floats("standard deviation", missing=True),
        p_value=table.floats("p-value", missing=True),
    )


def _strains(table: Table, role: str) -> Strains:
    # The second name is a gene's for a deletion, which has no suffix, and an allele's for the rest.
    orf = table.strings(f"{role} ORF")
    suffixed = orf.str.contains("_", literal=True)
    allele = table.frame.select(pl.when(suffixed).then(f"{role} gene").otherwise(pl.lit("")))
    return parse_strains(orf, allele.to_series())


def _refuse_header(table: Table) -> None:
    first = table.frame.row(0)
    if all(field.strip() and not _is_number(field) for field in first[4:]):
        raise InputError(
            f"a header was found where none belongs: {', '.join(first)}",
            where=table.path,
            line=int(table.lines[0]),
            fix="Remove the line; this format has seven columns and no header: "
            + ", ".join(COLUMNS),
        )


def _is_row(fields: Sequence[str]) -> bool:
    return (
        len(fields) == len(COLUMNS)
        and all(_ORF.fullmatch(fields[i]) for i in (0, 2))
        and all(_is_number(field) for field in fields[4:])
    )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
