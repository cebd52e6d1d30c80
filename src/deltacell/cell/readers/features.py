"""Features: tables of numbers with one row per gene or strain."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from deltacell.base.arrays import Bools, Doubles, Floats, Ints
from deltacell.base.errors import InputError
from deltacell.cell.annotation import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    account_for_names,
    bare_name,
    is_systematic,
    pattern,
    resolve_strains,
    stem_of,
)
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import (
    HEADER_WITHIN,
    MISSING,
    File,
    Header,
    Sheet,
    Table,
    is_number,
    numbers_of,
)

#: Reasons why a row is not counted: rows of one gene are averaged; a row has no number.
MERGED = "merged with another row of its gene"
NO_VALUE = "no value"

_GENE_NAME = re.compile(r"[A-Za-z][\w.:@'()\u0394\u2206,-]*")
_STANDARD_NAME = re.compile(r"[A-Za-z]{3}\d{1,3}(?:[_-].*)?[\u0394\u2206]?")
_OF_A_GENE = pattern("features", "gene")
_OF_AN_ALLELE = pattern("features", "allele")
_ONE_OF_SEVERAL = pattern("features", "one_of_several")
_PANDAS_INDEX = pattern("features", "pandas_index")
_MOST_LISTED = 12  # columns in a note
_N_EXAMPLES = 3  # genes in a note


class NoFeatureError(InputError):
    """A table that looks like a feature but has no values for the genes of this cell."""


@dataclass(frozen=True)
class FeatureForm:
    """A sheet with numbers and one gene or strain per row."""

    sheet: Sheet
    header_row: int


def _find(file: File) -> FeatureForm | None:
    """Return the first sheet with numbers and one gene or strain per row."""
    for sheet in file.sheets:
        if sheet.separator == " ":
            continue
        for header in sheet.headers:
            row = header.row
            if _is_feature(_written_names(header), sheet.rows[row + 1 : row + HEADER_WITHIN]):
                return FeatureForm(sheet, row)
    return None


def unnamed_index(name: str) -> bool:
    """Whether a column has no header, or that of the index of a data frame."""
    return name.startswith("column ") or _PANDAS_INDEX.fullmatch(name) is not None


def _written_names(header: Header) -> list[str]:
    """Return the column names of a header, empty where its field is empty."""
    names = enumerate(header.names, 1)
    return ["" if name == f"column {number}" else name for number, name in names]


def _is_feature(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header and the rows below it form a feature.

    The gene column is recognised by its header or by the names of yeast genes in it; others may
    name the same gene. A table with two genes per row is a network or a screen, not a feature.
    """
    whole_rows = [row for row in rows if len(row) == len(header) and any(row)]
    if not whole_rows or len(whole_rows) * 2 < len(rows):
        return False
    columns = list(map(_FirstFields, header, zip(*whole_rows, strict=True)))
    numbers = [column for column in columns if column.has_numbers]
    names = [column for column in columns if not column.has_numbers and column.may_be_genes]
    if not numbers or not names:
        return False
    if any(_is_gene_like(column.name) for column in names):
        return False
    # A number in the header may be a dose, or a value if there is no header.
    has_gene_header = any(_OF_A_GENE.fullmatch(column.name) for column in names)
    if not has_gene_header and any(is_number(column.name) for column in numbers):
        return False
    if any(_ONE_OF_SEVERAL.fullmatch(column.name) for column in names):
        return False
    return not any(_are_two_genes(first, second) for first, second in combinations(names, 2))


@dataclass(frozen=True)
class _FirstFields:
    """The first fields of a column."""

    name: str
    fields: Sequence[str]

    @property
    def _present(self) -> list[str]:
        return [field for field in self.fields if field.lower() not in MISSING]

    @property
    def has_numbers(self) -> bool:
        """Whether half of the fields that are there, or more, are numbers."""
        present = self._present
        return bool(present) and 2 * sum(map(is_number, present)) >= len(present)

    @property
    def may_be_genes(self) -> bool:
        """Whether the fields have the form of gene names, and the header or half of them say so."""
        present = self._present
        n_names = sum(_GENE_NAME.fullmatch(field) is not None for field in present)
        if not present or 5 * n_names < 4 * len(present):
            return False
        if _OF_A_GENE.fullmatch(self.name):
            return True
        return 2 * sum(map(_is_gene_like, present)) >= len(present)


def _is_gene_like(name: str) -> bool:
    return is_systematic(bare_name(name)) or _STANDARD_NAME.fullmatch(name) is not None


def _are_two_genes(first: _FirstFields, second: _FirstFields) -> bool:
    """Whether two columns cannot be two names of the same gene."""
    fields = zip(first.fields, second.fields, strict=True)
    pairs = [(bare_name(a), bare_name(b)) for a, b in fields if a and b]
    sides = list(zip(*pairs, strict=True))
    are_systematic = [2 * sum(map(is_systematic, side)) >= len(side) for side in sides]
    differ = any(a != b for a, b in pairs)
    if all(are_systematic):
        return differ
    if _OF_AN_ALLELE.fullmatch(first.name) or _OF_AN_ALLELE.fullmatch(second.name):
        return False
    if not any(are_systematic):
        return differ
    # One column is systematic, the other is not: the names must match one to one.
    return any(len(set(side)) < len(set(pairs)) for side in sides)


def _read(
    form: FeatureForm,
    genes: Genes,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    sheet = form.sheet
    sheets = {other.name for other in sheet.file.sheets if sheet.name}
    other_sheets = sorted(sheets - {sheet.name})
    return feature_of(sheet.below(form.header_row), genes, on_unknown, other_sheets)


def feature_of(
    table: Table,
    genes: Genes,
    on_unknown: OnUnresolved,
    other_sheets: Sequence[str] = (),
) -> tuple[Feature, Source]:
    """Make a feature of the numeric columns, and account for every row.

    Rows of one gene, such as its strains, are averaged column by column, ignoring missing values.
    Text and constant columns are omitted and listed in the notes; text among numbers is an error.
    The gene column is the one that names the most genes of the cell.
    """
    columns = _sort_columns(table)
    if not columns.numbers or not columns.texts:
        raise _no_feature("no-value", "it has no column of names or no column of numbers", table)
    gene_column = _gene_column(table, columns.texts, genes)
    rows = _FeatureRows.of(table, gene_column, np.stack([*columns.numbers.values()], axis=1))
    names = rows.table.frame[gene_column]
    index = resolve_strains(genes, names)
    not_found = account_for_names(genes, names, index, on_unknown, table.path, rows.table.lines)
    is_known = index >= 0
    if not is_known.any():
        message = f"none of its {len(names):,} rows names a gene of the cell, first '{names[0]}'"
        raise _no_feature("no-gene-of-the-cell", message, table)
    varies = _varies(rows.values[is_known])
    if not varies.any():
        raise _no_feature("constant-feature", "no column has two different values", table)
    has_value = ~np.isnan(rows.values[:, varies]).all(axis=1)
    kept = np.flatnonzero(is_known & has_value)
    matrix = merged_rows(rows.values[kept][:, varies], index[kept], len(genes))
    column_names = np.array(list(columns.numbers))
    feature = Feature(stem_of(table.path.name), matrix, tuple(column_names[varies].tolist()))
    n_genes = int(feature.known.sum())
    dropped = {
        **not_found.dropped,
        "blank row": rows.n_blank,
        NO_VALUE: int(is_known.sum()) - len(kept),
        MERGED: len(kept) - n_genes,
    }
    counts = Counts(n_genes + sum(dropped.values()), n_genes, dropped)
    left_out = {
        **columns.left_out,
        "text_columns_left_out": [text for text in columns.texts if text != gene_column],
        "columns_of_one_value_left_out": column_names[~varies].tolist(),
        "sheets_left_out": list(other_sheets),
    }
    notes = {
        "width": feature.width,
        "genes": n_genes,
        "missing_values": f"{feature.missing:.1%}",
        "genes_by": gene_column,
        **table.notes,
        **{reason: _listed(names) for reason, names in left_out.items() if names},
        **not_found.notes,
        **_note_on_repeated(index[kept], genes),
    }
    name = feature.name
    return feature, Source(table.path.name, table.sha256, reader.name, counts, name, notes)


@dataclass(frozen=True)
class _SortedColumns:
    """The columns of a table by what they contain."""

    numbers: dict[str, Doubles]
    texts: list[str]
    left_out: dict[str, list[str]]  # the names of others, by the reason to omit them


def _sort_columns(table: Table) -> _SortedColumns:
    """Sort the columns; a field of text among numbers is bad."""
    numbers: dict[str, Doubles] = {}
    texts = []
    left_out = defaultdict(list)
    for series in table.frame:
        name = series.name
        values, is_bad = numbers_of(series, decimal_comma=table.decimal_comma)
        n_numbers = int((~np.isnan(values)).sum())
        if n_numbers < is_bad.sum():
            texts.append(name)
        elif _PANDAS_INDEX.fullmatch(name) and _counts_rows(values):
            left_out["index_left_out"].append(name)
        elif n_numbers:
            numbers[name] = values
            table.mark_bad(f"column '{name}' is not a finite number", name, is_bad)
        elif not name.startswith("column "):
            left_out["columns_without_a_value"].append(name)
    return _SortedColumns(numbers, texts, left_out)


def _counts_rows(values: Doubles) -> bool:
    """Whether a column is the numbers of the rows, from 0 or 1."""
    rows = np.arange(len(values))
    return np.array_equal(values, rows) or np.array_equal(values, rows + 1)


@dataclass(frozen=True, eq=False)
class _FeatureRows:
    """The rows of a feature that are not blank."""

    table: Table
    values: Floats  # [rows, columns], NaN where missing
    n_blank: int

    @classmethod
    def of(cls, table: Table, gene_column: str, values: Doubles) -> _FeatureRows:
        """Return the rows with a gene or a value; a value without a gene is bad."""
        floats = values.astype(np.float32)
        is_unnamed = (table.frame[gene_column] == "").to_numpy()
        is_blank = is_unnamed & np.isnan(floats).all(axis=1)
        table.mark_bad("there are values and no gene name", gene_column, is_unnamed & ~is_blank)
        table.raise_if_bad()
        return cls(table.take(~is_blank), floats[~is_blank], int(is_blank.sum()))


def _varies(values: Floats) -> Bools:
    """Return which columns of [rows, columns] have two different values."""
    n_distinct = [len(np.unique(column[~np.isnan(column)])) for column in values.T]
    return np.array(n_distinct) > 1


def _note_on_repeated(index: Ints, genes: Genes) -> dict[str, str]:
    """Return a note on the genes with several rows; empty if there are none."""
    repeated = np.flatnonzero(np.bincount(index) > 1)
    if not len(repeated):
        return {}
    examples = ", ".join(genes.label(int(gene)) for gene in repeated[:_N_EXAMPLES])
    return {"genes_with_several_rows": f"{len(repeated):,}, merged by the mean, such as {examples}"}


def _no_feature(code: str, message: str, table: Table) -> NoFeatureError:
    fix = "Name the genes by systematic name, standard name or alias, and add columns of numbers."
    return NoFeatureError(message, code=code, where=table.path, fix=fix)


def _gene_column(table: Table, texts: Sequence[str], genes: Genes) -> str:
    """Return the column that names the most genes; raise if rows name two genes."""
    index = {name: resolve_strains(genes, table.frame[name]) for name in texts}
    best = max(index, key=lambda name: int((index[name] >= 0).sum()))
    for name, other in index.items():
        both_known = (index[best] >= 0) & (other >= 0)
        differ = both_known & (index[best] != other)
        n_both = both_known.sum()
        if 2 * n_both >= len(table) and 20 * differ.sum() > n_both:
            line = table.lines[int(np.argmax(differ))]
            message = f"columns '{best}' and '{name}' name two genes per row, first in line {line}"
            raise _no_feature("two-genes-per-row", message, table)
    return best


def merged_rows(values: Floats, index: Ints, n_genes: int) -> Floats:
    """Return the mean of each gene's rows without missing values, independent of their order."""
    matrix = np.full((n_genes, values.shape[1]), np.nan, dtype=np.float32)
    matrix[index] = values
    for gene in np.flatnonzero(np.bincount(index) > 1):
        # Sums depend on the order, so values are added in ascending order.
        own = np.sort(values[index == gene], axis=0).astype(np.float64)
        n_present = (~np.isnan(own)).sum(axis=0)
        mean = np.nansum(own, axis=0) / np.maximum(n_present, 1)
        matrix[gene] = np.where(n_present, mean, np.nan)
    return matrix


def _listed(names: Sequence[str]) -> str:
    """Return the first names in quotation marks, and the number of the others."""
    n_more = len(names) - _MOST_LISTED
    more = f" and {n_more:,} more" if n_more > 0 else ""
    return ", ".join(f"'{name}'" for name in names[:_MOST_LISTED]) + more


reader = Reader("features_table", "feature", _find, _read)
