"""What the readers share: what a reader is, the first lines of a file, and gene names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.errors import GeneNameError
from deltacell.table import Table

OnUnresolved = Literal["error", "drop"]

#: How many of the names that were not found are reported.
NAMED_AT_MOST = 5

_SYSTEMATIC = re.compile(r"(Y[A-P][LR]\d{3}[WC](-[A-Z0-9]+)?|Q0\d{3}|R\d{4}[WC])", re.IGNORECASE)
# What follows the gene in a strain ID (YAL001C_tsq508) or marks its deletion.
_STRAIN = r"(?:_.*|[\u0394\u2206])$"


class Reader(NamedTuple):
    """A source format: its name, how to recognise it, and how to read it.

    Formats of text are recognised by their first lines and the name of the file, those of arrays
    by the file. Networks give a list of `NamedEdges`; genes and features come with their source.
    """

    NAME: str
    recognise: Callable[..., bool]
    read: Callable[..., Any]


def first_line(head: Sequence[str]) -> str:
    """Return the first line that is not blank, or an empty one."""
    return next((line for line in head if line.strip()), "")


def header_of(head: Sequence[str], separator: str) -> list[str]:
    """Return the fields of the first line."""
    return [field.strip() for field in first_line(head).split(separator)]


def has_columns(*columns: str, separator: str = "\t") -> Callable[[Sequence[str], str], bool]:
    """Return what recognises a file whose header has these columns among others."""
    return lambda head, file_name: set(columns) <= set(header_of(head, separator))


def stem_of(file_name: str) -> str:
    """Return a file's name without its ending and that of its compression."""
    path = PurePath(PurePath(file_name).name)
    if path.suffix.lower() in (".gz", ".zip"):
        path = path.with_suffix("")
    return path.stem


def is_systematic(name: str) -> bool:
    """Whether a name has the form of a systematic name of yeast, such as ``YDL227C``."""
    return _SYSTEMATIC.fullmatch(name) is not None


def in_capitals(name: str) -> str:
    """Return a systematic name in capitals, and any other name as it is."""
    return name.upper() if is_systematic(name) else name


def names_in(table: Table, column: str) -> pl.Series:
    """Return a column of gene names without the blanks around them; an empty one is an error."""
    names = table.strings(column).str.strip_chars()
    table.refuse(column, (names == "").to_numpy(), "is not a gene name")
    return names


def check_distinct(table: Table, column: str, names: pl.Series) -> None:
    """Refuse a table that has a gene twice, upper and lower case aside."""
    again = (~names.str.to_uppercase().is_first_distinct()).to_numpy()
    table.refuse(column, again, "is given twice")


def resolve_strains(genes: Genes, names: pl.Series) -> Ints:
    """Look up genes by name or by the ID of a strain, such as ``YBR160W_dma12``."""
    index = genes.resolve(names).index
    unknown = index == UNKNOWN
    if unknown.any():
        bare = names.filter(pl.Series(unknown)).str.strip_chars().str.replace(_STRAIN, "")
        index = index.copy()
        index[unknown] = genes.resolve(bare).index
    return index


def count_unresolved(index: Ints) -> dict[str, int]:
    """Count the names that `Genes.resolve` did not find, by reason."""
    return {
        UNKNOWN_GENE: int((index == UNKNOWN).sum()),
        AMBIGUOUS_NAME: int((index == AMBIGUOUS).sum()),
    }


def unresolved_notes(names: pl.Series | Sequence[str], index: Ints) -> dict[str, str]:
    """Return which names were not found, the most frequent first, for the notes of a source.

    Names that differ only in case are one.
    """
    series = names if isinstance(names, pl.Series) else pl.Series(names, dtype=pl.String)
    notes = {}
    for why, code in (("unknown_genes", UNKNOWN), ("ambiguous_gene_names", AMBIGUOUS)):
        written = series.filter(pl.Series(index == code)).str.strip_chars()
        if len(written):
            counted = (
                pl.DataFrame({"name": written, "key": written.str.to_uppercase()})
                .group_by("key", maintain_order=True)
                .agg(pl.col("name").first(), pl.len().alias("times"))
                .sort("times", descending=True, maintain_order=True)
            )
            more = len(counted) - NAMED_AT_MOST
            notes[why] = ", ".join(counted["name"][:NAMED_AT_MOST])
            notes[why] += f" and {more:,} more" if more > 0 else ""
    return notes


def refuse_unresolved(
    genes: Genes, names: pl.Series, index: Ints, on_unknown: str, path: Path, lines: Ints | None
) -> None:
    """Raise for the first name that was not found, where that is an error."""
    if on_unknown not in ("error", "drop"):
        raise ValueError(f"on_unknown is '{on_unknown}', and 'error' or 'drop' was expected")
    bad = np.flatnonzero(index < 0)
    if on_unknown == "error" and len(bad):
        row = int(bad[0])
        more = f" (the first of {len(bad):,} such rows)" if len(bad) > 1 else ""
        place = f" (row {row + 1})" if lines is None else more
        line = None if lines is None else int(lines[row])
        raise name_error(genes, names[row], path, line=line, place=place)


def name_error(
    genes: Genes, name: str, path: Path, *, line: int | None = None, place: str = ""
) -> GeneNameError:
    """Return the error for a name that the genes do not resolve; `place` is added to it."""
    try:
        genes.index(name)
    except GeneNameError as error:
        fix = f"{error.fix} Or choose what to do with unknown genes: drop or add."
        what = error.what + place
        return GeneNameError(what, code=error.code, where=path, line=line, fix=fix)
    raise ValueError(f"'{name}' is a gene of the cell")
