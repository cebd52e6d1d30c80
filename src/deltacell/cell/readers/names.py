"""Shared by all readers: the class `Reader`, tables with a known header, and gene names."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
from deltacell.base.errors import GeneNameError, InputError
from deltacell.cell.genes import AMBIGUOUS, LONGEST_NAME, UNKNOWN, Genes
from deltacell.cell.readers.damage import damaged_names, note_on_damage
from deltacell.storage.provenance import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.storage.tables import ColumnNames, File, Sheet, Table

OnUnresolved = Literal["error", "drop"]
ReadTable = Callable[[], Table]
FindTable = Callable[[File], ReadTable | None]
Form = TypeVar("Form")
Result = TypeVar("Result")

#: Patterns of column headers.
HEADERS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"),
)

#: The marks of a deletion: rad52Δ, rad52-delta, rad52Δ::kanMX, Δrad52.
DELETED = r"(?i)^[\u0394\u2206](?=\w)|(?:[-_ ]?[\u0394\u2206\u03b4]|[-_ ]delta)?(?:::\w+)?$"

_MOST_NAMED = 5  # names in a note
_LONGEST_NAMED = 80  # characters of a name in a note
_SYSTEMATIC = re.compile(r"(Y[A-P][LR]\d{3}[WC](-[A-Z0-9]+)?|Q0\d{3}|R\d{4}[WC])", re.IGNORECASE)
_PARTS = {
    "TAIL": "(strain|systematic|orf|locus|tag|symbol|gene|name|id)*",
    "GREEK": "(ε|epsilon|eps|τ|tau|epsilonortau|π|pi)",
}
# The suffix of a strain ID (YAL001C_tsq508) or the mark of a deletion.
_STRAIN = r"(?:_.*|[\u0394\u2206])$"


@dataclass(frozen=True)
class Reader(Generic[Form, Result]):
    """A source format: how to recognise it, and how to read it.

    `find` looks at the first rows of a file and returns what it saw there, its form, or None if the
    file has another format. `make` reads the whole file from that form.
    """

    name: str
    gives: str  # genes, edges, metabolism, terms, feature, screens, …
    find: Callable[[File], Form | None]
    make: Callable[..., Result]
    fix: str | None = None  # a hint for files that do not have this format

    def read(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[ColumnNames] = (),
        **options: Any,
    ) -> Result:
        """Read a file; raise if it has another format.

        Args:
            path: The file.
            columns: What its columns mean, as given by the user.
            options: Further arguments of `make`.
        """
        form = self.find(File(path, columns))
        if form is None:
            message = f"the file is empty or not in the format '{self.name}'"
            raise InputError(message, code="other-format", where=path, fix=self.fix)
        return self.make(form, **options)


class UnclearColumns(NamedTuple):
    """The columns of genes and of a number in a table whose meaning only the user knows."""

    reason: str  # why the table is not read
    genes: list[str]
    number: str


def table_reader(
    name: str,
    gives: str,
    find: FindTable,
    make: Callable[..., Result],
) -> Reader[ReadTable, Result]:
    """Return the reader of a format whose tables are found by their header or first rows."""
    return Reader(name, gives, find, lambda read_table, **options: make(read_table(), **options))


def with_header(
    *columns: str,
    alone: bool = False,
    any_of: Sequence[str] = (),
    ignore_case: bool = False,
) -> FindTable:
    """Find the table below a header with these columns (and no others, if `alone`).

    If `any_of` is given, at least one of these is required. In a text file, the header must be in
    the first three rows. The table has the columns as they are written, also if `ignore_case`.
    """

    def spelled(names: Iterable[str]) -> list[str]:
        return [name.lower() if ignore_case else name for name in names]

    required = spelled(columns)
    alternatives = spelled(any_of)

    def is_header(fields: Sequence[str]) -> bool:
        names = spelled(fields)
        has_all = names == required if alone else set(required) <= set(names)
        return has_all and (not alternatives or not set(alternatives).isdisjoint(names))

    def find(file: File) -> ReadTable | None:
        for sheet in file.sheets:
            n_rows = 3 if sheet.separator else len(sheet.rows)
            for row, fields in enumerate(sheet.rows[:n_rows]):
                if is_header(fields):
                    return partial(sheet.below, row, quotes=False)
        return None

    return find


def without_header(columns: Sequence[str], fits: Callable[[Sheet], bool]) -> FindTable:
    """Find a table without a header by its first rows, and give its columns these names."""

    def find(file: File) -> ReadTable | None:
        sheet = next((sheet for sheet in file.sheets if fits(sheet)), None)
        return None if sheet is None else partial(sheet.below, None, names=columns, quotes=False)

    return find


def pattern(kind: str, column: str) -> re.Pattern[str]:
    """Return the pattern of the headers of a column, for a kind of table, ignoring case."""
    alternatives = "|".join(HEADERS[kind][column])
    for word, meaning in _PARTS.items():
        alternatives = alternatives.replace(word, meaning)
    return re.compile(alternatives, re.IGNORECASE)


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
    """Return a column of gene names; an empty name, or one that is too long, is bad."""
    names = table.frame[column]
    table.mark_bad(f"no gene name in column '{column}'", column, names == "")
    check_lengths(table, column)
    return names


def check_lengths(table: Table, column: str, longest: int = LONGEST_NAME) -> None:
    """Mark the rows as bad whose name has more than this number of characters."""
    too_long = table.frame[column].str.len_chars() > longest
    table.mark_bad(f"a name of more than {longest} characters", column, too_long)


def check_number(table: Table, column: str) -> None:
    """Raise if another column has the same number and other names, as in ``gene1,gene2,gene2``."""
    if column[-1].isdigit():
        table.check_not_repeated(column)


def resolve_strains(genes: Genes, names: pl.Series) -> Ints:
    """Look up genes by name or by strain ID, such as ``YBR160W_dma12``."""
    index = genes.resolve(names)
    is_unknown = index == UNKNOWN
    without_strain = names.filter(pl.Series(is_unknown)).str.replace(_STRAIN, "")
    index[is_unknown] = genes.resolve(without_strain)
    return index


class NamesNotFound(NamedTuple):
    """The names of a file that are not genes of the cell."""

    dropped: dict[str, int]  # their number by reason
    notes: dict[str, str]  # that list them


def account_for_names(
    genes: Genes,
    names: pl.Series,
    index: Ints,
    on_unknown: OnUnresolved,
    path: Path,
    lines: Ints | None = None,
) -> NamesNotFound:
    """Return which names were not found; with the policy ``error``, raise if there are any.

    Args:
        genes: The genes of the cell.
        names: As in the file, [rows].
        index: The gene of each, `UNKNOWN` or `AMBIGUOUS`, [rows].
        on_unknown: The policy.
        path: The file, for the error.
        lines: The line of each name, for the error, [rows].
    """
    rows = np.flatnonzero(index < 0)
    notes = unresolved_notes(names, index, genes)
    if on_unknown == "error" and len(rows):
        line = None if lines is None else int(lines[rows[0]])
        raise names_error(notes, f"{len(rows):,} of {len(index):,} rows", path, line)
    n_unknown = int((index == UNKNOWN).sum())
    n_ambiguous = int((index == AMBIGUOUS).sum())
    return NamesNotFound({UNKNOWN_GENE: n_unknown, AMBIGUOUS_NAME: n_ambiguous}, notes)


def names_error(
    notes: Mapping[str, str],
    rows: str,
    path: Path,
    line: int | None,
) -> GeneNameError:
    """Return the error that rows have names that were not found.

    Args:
        notes: The names, from `unresolved_notes`.
        rows: The number of these rows in words, such as ``3 of 100 rows``.
        path: The file.
        line: The line of the first of them.
    """
    return GeneNameError(
        f"{rows} have unknown or ambiguous gene names ({text_of_notes(notes)})",
        code="unknown-gene" if "unknown_genes" in notes else "ambiguous-gene",
        where=path,
        line=line,
        fix="Use systematic names, drop such rows, or add the genes to the cell.",
        **notes,
    )


def text_of_notes(notes: Mapping[str, str]) -> str:
    """Return the notes on names that were not found as text."""
    return "; ".join(f"{reason.replace('_', ' ')}: {names}" for reason, names in notes.items())


def unresolved_notes(names: pl.Series, index: Ints, genes: Genes) -> dict[str, str]:
    """Return the names that were not found, ignoring case, the most frequent first.

    Names that a spreadsheet has damaged are named once more, with their number and the gene of the
    cell that they probably were.
    """
    written = names.cast(pl.String).rename("name")
    notes = {}
    for reason, code in (("unknown_genes", UNKNOWN), ("ambiguous_gene_names", AMBIGUOUS)):
        missing = _by_frequency(written.filter(pl.Series(index == code)))
        if len(missing):
            n_more = len(missing) - _MOST_NAMED
            listed = ", ".join(name[:_LONGEST_NAMED] for name in missing[:_MOST_NAMED])
            notes[reason] = f"{listed} and {n_more:,} more" if n_more > 0 else listed
    if not notes:
        return {}
    damaged = damaged_names(dict(written.to_frame().group_by("name").len().iter_rows()))
    unknown = set(written.filter(pl.Series(index == UNKNOWN)))
    damaged_unknown = Counter({name: n for name, n in damaged.items() if name in unknown})
    return notes | note_on_damage(damaged_unknown, genes)


def _by_frequency(names: pl.Series) -> pl.Series:
    """Return the distinct names, ignoring case, as first written, the most frequent first."""
    letters = pl.col("name").str.to_uppercase().alias("letters")
    groups = names.to_frame().group_by(letters, maintain_order=True)
    counts = groups.agg(pl.col("name").first(), pl.len().alias("times"))
    return counts.sort("times", descending=True, maintain_order=True)["name"]
