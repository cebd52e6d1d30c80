"""The split of a run or a config as a table, so that others can train on the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.train.data import TrainingData

PARTS = ("train", "validation", "test")
DROPPED = "dropped"  # in no part of the split


def split_table(data: TrainingData, parts: Sequence[str] = (*PARTS, DROPPED)) -> pl.DataFrame:
    """Return the genes, the measured score and the part of every genotype of a split.

    The columns are ``gene1``, ``gene2``, …, empty for smaller sets, with systematic names, then
    ``score`` and ``part``. Only rows of ``parts`` are included, in the order of the screen.
    """
    part_of_row = np.full(len(data.screen), DROPPED, dtype=object)
    for part in PARTS:
        part_of_row[getattr(data.split, part)] = part
    genes = data.screen.genes
    n_columns = data.largest
    names: list[list[str | None]] = []
    for genotype in data.screen.genotypes:
        of_genotype: list[str | None] = [genes[gene] for gene in genotype.tolist()]
        names.append([*of_genotype, *[None] * (n_columns - len(of_genotype))])
    columns = [f"gene{number}" for number in range(1, n_columns + 1)]
    table = pl.DataFrame(names, schema=dict.fromkeys(columns, pl.String), orient="row")
    table = table.with_columns(
        score=pl.Series(data.screen.column("score")),
        part=pl.Series(part_of_row.tolist(), dtype=pl.String),
    )
    return table.filter(pl.col("part").is_in(list(parts)))
