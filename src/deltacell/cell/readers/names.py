"""What the readers share about gene names: how they are cleaned, and how a bad one is reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes
from deltacell.errors import GeneNameError
from deltacell.table import Table

OnUnresolved = Literal["error", "drop"]

#: How many of the names that were not found are told.
NAMED_AT_MOST = 5

_SYSTEMATIC = re.compile(r"(Y[A-P][LR]\d{3}[WC](-[A-Z0-9]+)?|Q0\d{3}|R\d{4}[WC])", re.IGNORECASE)


def is_systematic(name: str) -> bool:
    """Whether a name has the form of a systematic name of yeast, such as ``YDL227C``."""
    return _SYSTEMATIC.fullmatch(name) is not None


def in_capitals(name: str) -> str:
    """Return a systematic name in capitals, and any other name as it is."""
    return name.upper() if is_systematic(name) else name


def names_in(table: Table, column: str) -> pl.Series:
    """Return a column of gene names without the blanks around them; an empty one is an error."""
    names = table.strings(column).str.strip_chars()
    empty = (names == "").to_numpy()
    if empty.any():
        raise table.error(int(empty.argmax()), f"column '{column}' holds no gene name")
    return names


def unresolved_notes(names: pl.Series | Sequence[str], index: Ints) -> dict[str, str]:
    """Return which names were not found, for the notes of a source; nothing where all were.

    The most frequent come first, then how many more there are. Names that differ only in case are
    one.

    Parameters
    ----------
    names
        As they are written, with repetitions.
    index
        What `Genes.resolve` made of each.
    """
    series = names if isinstance(names, pl.Series) else pl.Series(names, dtype=pl.String)
    told = {}
    for why, code in (("unknown_genes", UNKNOWN), ("ambiguous_gene_names", AMBIGUOUS)):
        written = series.filter(pl.Series(index == code)).str.strip_chars()
        if len(written):
            told[why] = _most_frequent(written)
    return told


def check_policy(on_unknown: str) -> None:
    """Refuse a policy that a reader cannot carry out by itself."""
    if on_unknown not in ("error", "drop"):
        raise ValueError(
            f"on_unknown is '{on_unknown}', and 'error' or 'drop' was expected; "
            "genes are added to the cell before its files are resolved"
        )


def name_error(
    genes: Genes, name: str, path: Path, *, line: int | None = None, place: str = ""
) -> GeneNameError:
    """Return the error for a name that the genes do not resolve.

    Parameters
    ----------
    genes
        The cell's genes.
    name
        A name that is unknown to them or ambiguous.
    path, line
        Where it is written.
    place
        A place within the file where there are no lines, or what else to say of it.
    """
    try:
        genes.index(name)
    except GeneNameError as error:
        return GeneNameError(
            error.what + place,
            where=path,
            line=line,
            fix=f"{error.fix} Or choose what to do with unknown genes: drop or add.",
        )
    raise ValueError(f"'{name}' is a gene of the cell")


def _most_frequent(names: pl.Series) -> str:
    counted = (
        pl.DataFrame({"name": names, "key": names.str.to_uppercase()})
        .group_by("key", maintain_order=True)
        .agg(pl.col("name").first(), pl.len().alias("times"))
        .sort("times", descending=True, maintain_order=True)
    )
    more = len(counted) - NAMED_AT_MOST
    return ", ".join(counted["name"][:NAMED_AT_MOST]) + (f" and {more:,} more" if more > 0 else "")
