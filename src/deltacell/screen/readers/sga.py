"""Rows of an SGA study: a query strain crossed with an array strain, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from deltacell.errors import InputError
from deltacell.screen.columns import HO
from deltacell.screen.readers.fields import (
    NO_SCORE,
    checked_phenotype,
    optional_floats,
    scored_rows,
)
from deltacell.screen.readers.strains import crossed, parse_strains
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import Table

#: Why a row is dropped that crosses the control locus alone with the array: its interaction score
#: is of one gene. Its fitness is the array gene's, and is kept.
CONTROL_ALONE = "control locus alone as query"


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are called.

    Parameters
    ----------
    query, array
        The strain IDs.
    query_allele, array_allele
        Names of their alleles.
    interaction
        The interaction score.
    p_value
        Its p-value.
    fitness, fitness_deviation
        Of the combined mutant, and its standard deviation.
    query_fitness, array_fitness
        Of the strains that were crossed.
    """

    query: str
    array: str
    query_allele: str
    array_allele: str
    interaction: str
    p_value: str
    fitness: str
    fitness_deviation: str
    query_fitness: str
    array_fitness: str


def read_crosses(
    table: Table,
    columns: Columns,
    *,
    reader: str,
    study: str,
    phenotype: str | None,
    ho_is_control: bool = False,
    panel: pl.Series | None = None,
) -> WrittenScreen:
    """Return the crosses of a table.

    The standard deviation that such files give is that of the combined mutant's fitness. It goes
    with the phenotype ``fitness``; that of an interaction score is missing. The p-value is that of
    the interaction, whichever phenotype is read.

    Parameters
    ----------
    table
        The rows.
    columns
        What its columns are called; only the strains and the score must be there.
    reader, study
        Names to carry.
    phenotype
        ``interaction`` or ``fitness``; None for the first of them that the file has.
    ho_is_control
        Whether HO in a query strain stands for no gene.
    panel
        The array of each row, where the study used several.
    """
    if not len(table):
        raise InputError("the screen is empty: there is a header and no row", where=table.path)
    score_columns = {"interaction": columns.interaction, "fitness": columns.fitness}
    phenotype = checked_phenotype(phenotype, score_columns, table)
    score, rows = scored_rows(table, score_columns[phenotype])
    dropped = {NO_SCORE: len(table) - len(rows)}

    def alleles(column: str) -> pl.Series | None:
        return table.strings(column) if column in table.frame.columns else None

    query = parse_strains(table.strings(columns.query), alleles(columns.query_allele))
    array = parse_strains(table.strings(columns.array), alleles(columns.array_allele))
    if ho_is_control:
        query = query.without(HO)
        alone = query.sizes[rows] == 0
        if phenotype == "interaction" and alone.any():
            dropped[CONTROL_ALONE] = int(alone.sum())
            score, rows = score[~alone], rows[~alone]
    crosses = crossed(query.take(rows), array.take(rows))
    deviation = columns.fitness_deviation if phenotype == "fitness" else None
    return WrittenScreen(
        crosses.names,
        crosses.offsets,
        crosses.role,
        crosses.perturbation,
        crosses.allele,
        table.lines[rows],
        table.path,
        table.sha256,
        reader,
        study,
        phenotype,
        score=score,
        standard_deviation=optional_floats(table, deviation, rows),
        p_value=optional_floats(table, columns.p_value, rows),
        query_fitness=optional_floats(table, columns.query_fitness, rows),
        array_fitness=optional_floats(table, columns.array_fitness, rows),
        panel=None if panel is None else panel.gather(rows),
        dropped=dropped,
        complete_coverage=True,
    )
