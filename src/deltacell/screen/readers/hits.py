"""Lists of Kuzmin 2018 hits: gene sets and the sign of their interaction, without a score."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray
from deltacell.cell.readers.names import header_of
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.readers.fields import one_of
from deltacell.screen.readers.strains import perturbation_of
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import Table, read_table

NAME = "hits"

#: What a sign is called. A pair that was a hit in both directions has none.
SIGNS = {"negative": -1, "positive": 1, "both": 0}

_TRIGENIC = ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows")
_DIGENIC = ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign")


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the first line is the header of a list of digenic or trigenic hits.

    Parameters
    ----------
    head
        First lines of the file.
    file_name
        Not looked at.
    """
    cells = set(header_of(head, "\t"))
    return cells.issuperset(_TRIGENIC) or cells.issuperset(_DIGENIC)


def read(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a list of hits.

    Trigenic hits are negative, as the study reported no others. Which gene was the query's is not
    told, so nothing follows about what else was tested.

    Parameters
    ----------
    path
        The file.
    study
        What to call the study; ``kuzmin2018`` where not given.
    phenotype
        Only ``interaction`` is there.
    """
    table = read_table(path, required=["orf1", "orf2", "allele1", "allele2"])
    if phenotype not in (None, "interaction"):
        raise PhenotypeError(
            f"a list of hits has signs of interactions and no '{phenotype}'", where=table.path
        )
    if not len(table):
        raise InputError("the screen is empty: there is a header and no row", where=table.path)
    n_genes = 3 if "orf3" in table.frame.columns else 2
    expected = _TRIGENIC if n_genes == 3 else _DIGENIC
    absent = [name for name in expected if name not in table.frame.columns]
    if absent:
        raise InputError(f"the header lacks {', '.join(absent)}", where=table.path, line=1)
    allele = _interleaved(table, [f"allele{i + 1}" for i in range(n_genes)])
    sign, replicates = _negative(table) if n_genes == 3 else _either(table)
    return WrittenScreen(
        _interleaved(table, [f"orf{i + 1}" for i in range(n_genes)]),
        np.arange(0, n_genes * len(table) + 1, n_genes),
        pl.repeat("unknown", len(allele), eager=True),
        pl.select(perturbation_of(pl.lit(allele))).to_series(),
        allele,
        table.lines,
        table.path,
        table.sha256,
        NAME,
        study or "kuzmin2018",
        "interaction",
        sign=sign,
        replicates=replicates,
    )


def _negative(table: Table) -> tuple[AnyArray, AnyArray]:
    return np.full(len(table), -1, dtype=np.int8), table.floats("n_rows").astype(np.int32)


def _either(table: Table) -> tuple[AnyArray, AnyArray]:
    written = table.strings("sign").str.strip_chars().str.to_lowercase()
    one_of(written, list(SIGNS), "sign", table)
    replicates = table.floats("n_negative_rows") + table.floats("n_positive_rows")
    sign = written.replace_strict(SIGNS, return_dtype=pl.Int8)
    return sign.to_numpy(), replicates.astype(np.int32)


def _interleaved(table: Table, columns: Sequence[str]) -> pl.Series:
    """Return some columns as one, row by row."""
    lists = table.frame.select(pl.concat_list(pl.col(columns).str.strip_chars()))
    return lists.to_series().explode()
