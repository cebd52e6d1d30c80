"""Shared by all readers: the class `Reader`, tables with a known header, and gene names."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
from deltacell.base.errors import GeneNameError, InputError
from deltacell.cell.genes import AMBIGUOUS, LONGEST_NAME, UNKNOWN, Genes
from deltacell.cell.readers.damage import damaged_names, note_on_damage
from deltacell.storage.provenance import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.storage.tables import ColumnNames, File, Sheet, Table

OnUnresolved = Literal["error", "drop"]
Find = Callable[[File], Callable[[], Table] | None]

#: Patterns of column headers.
HEADERS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"),
)

#: The marks of a deletion: rad52Δ, rad52-delta, rad52Δ::kanMX, Δrad52.
DELETED = r"(?i)^[\u0394\u2206](?=\w)|(?:[-_ ]?[\u0394\u2206\u03b4]|[-_ ]delta)?(?:::\w+)?$"

_NAMED_AT_MOST = 5
_SHOWN = 80  # characters of a name in a note
_SYSTEMATIC = re.compile(r"(Y[A-P][LR]\d{3}[WC](-[A-Z0-9]+)?|Q0\d{3}|R\d{4}[WC])", re.IGNORECASE)
_PARTS = {
    "TAIL": "(strain|systematic|orf|locus|tag|symbol|gene|name|id)*",
    "GREEK": "(ε|epsilon|eps|τ|tau|epsilonortau|π|pi)",
}
# The suffix of a strain ID (YAL001C_tsq508) or the mark of a deletion.
_STRAIN = r"(?:_.*|[\u0394\u2206])$"


@dataclass(frozen=True)
class Reader:
    """A source format: how to recognise it, and how to read it."""

    name: str
    gives: str  # genes, edges, metabolism, terms, feature, screens, …
    find: Callable[[File], Any]  # returns the argument of `make`; falsy for other formats
    make: Callable[..., Any]
    fix: str | None = None  # a hint for files that do not have this format

    def read(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[ColumnNames] = (),
        **options: Any,
    ) -> Any:
        found = self.find(File(path, columns))
        if not found:
            what = f"the file is empty or not in the format '{self.name}'"
            raise InputError(what, code="other-format", where=path, fix=self.fix)
        return self.make(found, **options)


def table_reader(name: str, gives: str, find: Find, make: Callable[..., Any]) -> Reader:
    return Reader(name, gives, find, lambda below, **options: make(below(), **options))


def with_header(*columns: str, alone: bool = False, any_of: Sequence[str] = ()) -> Find:
    """Find the table below a header with these columns (and no others, if `alone`).

    If `any_of` is given, at least one of these is required. In a text file, the header must be in
    the first three rows.
    """

    def find(file: File) -> Callable[[], Table] | None:
        for sheet in file.sheets:
            for at, row in enumerate(sheet.rows[: 3 if sheet.separator else None]):
                there = row == list(columns) if alone else set(columns) <= set(row)
                if there and (not any_of or set(any_of) & set(row)):
                    return partial(sheet.below, at, quotes=False)
        return None

    return find


def without_header(columns: Sequence[str], fits: Callable[[Sheet], bool]) -> Find:
    def find(file: File) -> Callable[[], Table] | None:
        sheet = next((sheet for sheet in file.sheets if fits(sheet)), None)
        return None if sheet is None else partial(sheet.below, None, names=columns, quotes=False)

    return find


def pattern(kind: str, column: str) -> re.Pattern[str]:
    """Return the pattern of the headers of a column, for a kind of table, ignoring case."""
    written = "|".join(HEADERS[kind][column])
    for word, meant in _PARTS.items():
        written = written.replace(word, meant)
    return re.compile(written, re.IGNORECASE)


def stem_of(file_name: str) -> str:
    """Return a file's name without its suffix and that of its compression."""
    return PurePath(re.sub(r"\.(gz|zip)$", "", file_name, flags=re.IGNORECASE)).stem


def is_systematic(name: str) -> bool:
    """Whether a name has the form of a systematic name of yeast, such as ``YDL227C``."""
    return _SYSTEMATIC.fullmatch(name) is not None


def bare_name(written: str) -> str:
    """Return a name in capitals, without the suffix of a strain and the mark of a deletion."""
    return re.sub(DELETED, "", written.strip()).split("_")[0].upper()


def in_capitals(name: str) -> str:
    """Return a systematic name in capitals, and any other name unchanged."""
    return name.upper() if is_systematic(name) else name


def names_in(table: Table, column: str) -> pl.Series:
    """Return a column of gene names; an empty one, or one that is too long, is bad."""
    names = table.frame[column]
    table.mark_bad(f"no gene name in column '{column}'", column, names == "")
    check_lengths(table, column)
    return names


def check_lengths(table: Table, column: str, longest: int = LONGEST_NAME) -> None:
    too_long = table.frame[column].str.len_chars() > longest
    table.mark_bad(f"a name of more than {longest} characters", column, too_long)


def resolve_strains(genes: Genes, names: pl.Series) -> Ints:
    """Look up genes by name or by strain ID, such as ``YBR160W_dma12``."""
    index = genes.resolve(names)
    unknown = index == UNKNOWN
    bare = names.filter(pl.Series(unknown)).str.replace(_STRAIN, "")
    index[unknown] = genes.resolve(bare)
    return index


def account_for_names(
    genes: Genes,
    names: pl.Series,
    index: Ints,
    on_unknown: OnUnresolved,
    path: Path,
    lines: Ints | None = None,
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of names that were not found, by reason, and notes that list them.

    With the policy ``error``, raise if there are any.
    """
    bad, notes = np.flatnonzero(index < 0), unresolved_notes(names, index, genes)
    if on_unknown == "error" and len(bad):
        line = None if lines is None else int(lines[bad[0]])
        raise names_not_found(notes, f"{len(bad):,} of {len(index):,} rows", path, line)
    codes = {UNKNOWN_GENE: UNKNOWN, AMBIGUOUS_NAME: AMBIGUOUS}
    return {why: int((index == code).sum()) for why, code in codes.items()}, notes


def names_not_found(
    notes: Mapping[str, str],
    rows: str,
    path: Path,
    line: int | None,
) -> GeneNameError:
    return GeneNameError(
        f"{rows} have unknown or ambiguous gene names ({text_of_notes(notes)})",
        code="unknown-gene" if "unknown_genes" in notes else "ambiguous-gene",
        where=path,
        line=line,
        fix="Use systematic names, drop such rows, or add the genes to the cell.",
        **notes,
    )


def text_of_notes(notes: Mapping[str, str]) -> str:
    return "; ".join(f"{why.replace('_', ' ')}: {names}" for why, names in notes.items())


def unresolved_notes(names: pl.Series, index: Ints, genes: Genes) -> dict[str, str]:
    """Return the names that were not found, ignoring case, the most frequent first.

    Names that a spreadsheet has damaged are named once more, with their number and the gene of the
    cell that they probably were.
    """
    notes = {}
    for why, code in (("unknown_genes", UNKNOWN), ("ambiguous_gene_names", AMBIGUOUS)):
        written = names.cast(pl.String).filter(pl.Series(index == code)).rename("name").to_frame()
        counted = (
            written.group_by(pl.col("name").str.to_uppercase().alias("key"), maintain_order=True)
            .agg(pl.col("name").first(), pl.len().alias("times"))
            .sort("times", descending=True, maintain_order=True)["name"]
        )
        if len(counted):
            more = len(counted) - _NAMED_AT_MOST
            notes[why] = ", ".join(name[:_SHOWN] for name in counted[:_NAMED_AT_MOST])
            notes[why] += f" and {more:,} more" if more > 0 else ""
    if not notes:
        return {}
    written = names.cast(pl.String).rename("name").to_frame()
    damaged = damaged_names(dict(written.group_by("name").len().iter_rows()))
    unknown = set(written["name"].filter(pl.Series(index == UNKNOWN)))
    of_unknown = Counter({name: n for name, n in damaged.items() if name in unknown})
    return notes | note_on_damage(of_unknown, genes)
