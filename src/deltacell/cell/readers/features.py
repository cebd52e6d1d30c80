"""Features: tables of numbers with one row per gene or strain."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from deltacell.base.arrays import Doubles, Floats, Ints
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
    Sheet,
    Table,
    is_number,
    numbers_of,
)

#: Reasons why a row is not counted: rows of one gene are averaged; a row has no number.
MERGED, NO_VALUE = "merged with another row of its gene", "no value"

_GENE_NAME = re.compile(r"[A-Za-z][\w.:@'()\u0394\u2206,-]*")
_STANDARD_NAME = re.compile(r"[A-Za-z]{3}\d{1,3}(?:[_-].*)?[\u0394\u2206]?")
_OF_A_GENE, _OF_AN_ALLELE, _ONE_OF_SEVERAL, _PANDAS_INDEX = (
    pattern("features", key) for key in ("gene", "allele", "one_of_several", "pandas_index")
)


class NoFeatureError(InputError):
    """A table that looks like a feature but has no values for the genes of this cell."""


def _find(file: File) -> tuple[Sheet, int] | None:
    """Return the first sheet with numbers and one gene or strain per row, and its header's row."""
    for sheet in (sheet for sheet in file.sheets if sheet.separator != " "):
        for at, header, _ in sheet.headers:
            named = ["" if name == f"column {i}" else name for i, name in enumerate(header, 1)]
            if _is_feature(named, sheet.rows[at + 1 : at + HEADER_WITHIN]):
                return sheet, at
    return None


def _is_feature(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header and the rows below it form a feature.

    The gene column is recognised by its header or by the names of yeast genes in it; others may
    name the same gene. A table with two genes per row is a network or a screen, not a feature.
    """
    below = [row for row in rows if len(row) == len(header) and any(row)]
    if not below or len(below) * 2 < len(rows):
        return False
    columns = list(zip(*below, strict=True))
    numbers, named = [], []
    for i, column in enumerate(columns):
        fields = [field for field in column if field.lower() not in MISSING]
        if fields and 2 * sum(map(is_number, fields)) >= len(fields):
            numbers.append(i)
        elif fields and _may_be_genes(header[i], fields):
            named.append(i)
    # A number in the header may be a dose, or a value if there is no header.
    called_so = any(_OF_A_GENE.fullmatch(header[i]) for i in named)
    return bool(
        numbers
        and named
        and not any(_is_gene_like(header[i]) for i in named)
        and (called_so or not any(is_number(header[i]) for i in numbers))
        and not any(_ONE_OF_SEVERAL.fullmatch(header[i]) for i in named)
        and not any(_are_two_genes(header, columns, i, j) for i, j in combinations(named, 2)),
    )


def _may_be_genes(header: str, fields: Sequence[str]) -> bool:
    if 5 * sum(_GENE_NAME.fullmatch(f) is not None for f in fields) < 4 * len(fields):
        return False
    return bool(_OF_A_GENE.fullmatch(header)) or 2 * sum(map(_is_gene_like, fields)) >= len(fields)


def _is_gene_like(name: str) -> bool:
    return is_systematic(bare_name(name)) or _STANDARD_NAME.fullmatch(name) is not None


def _are_two_genes(header: Sequence[str], columns: Sequence[Sequence[str]], i: int, j: int) -> bool:
    """Whether two columns cannot be two names of the same gene."""
    both = ((a, b) for a, b in zip(columns[i], columns[j], strict=True) if a and b)
    pairs = [(bare_name(a), bare_name(b)) for a, b in both]
    sides = list(zip(*pairs, strict=True))
    are_systematic = [2 * sum(map(is_systematic, side)) >= len(side) for side in sides]
    differ = any(a != b for a, b in pairs)
    if all(are_systematic):
        return differ
    if _OF_AN_ALLELE.fullmatch(header[i]) or _OF_AN_ALLELE.fullmatch(header[j]):
        return False
    if not any(are_systematic):
        return differ
    # One column is systematic, the other is not: the names must match one to one.
    return any(len(set(side)) < len(set(pairs)) for side in sides)


def _read(
    found: tuple[Sheet, int],
    genes: Genes,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    sheet, at = found
    sheets = {other.name for other in sheet.file.sheets if sheet.name}
    return feature_of(sheet.below(at), genes, on_unknown, sorted(sheets - {sheet.name}))


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
    numbers, texts, left_out = _columns(table)
    if not numbers or not texts:
        raise _no_feature("no-value", "it has no column of names or no column of numbers", table)
    gene = _gene_column(table, texts, genes)
    values = np.stack([*numbers.values()], axis=1).astype(np.float32)
    unnamed = (table.frame[gene] == "").to_numpy()
    blank = unnamed & np.isnan(values).all(axis=1)
    table.mark_bad("there are values and no gene name", gene, unnamed & ~blank)
    table.raise_if_bad()
    table, values = table.take(~blank), values[~blank]
    names, lines = table.frame[gene], table.lines
    index = resolve_strains(genes, names)
    dropped, unresolved = account_for_names(genes, names, index, on_unknown, table.path, lines)
    known = index >= 0
    varies = np.array([len(np.unique(one[~np.isnan(one)])) > 1 for one in values[known].T])
    if not known.any():
        what = f"none of its {len(names):,} rows names a gene of the cell, first '{names[0]}'"
        raise _no_feature("no-gene-of-the-cell", what, table)
    if not varies.any():
        raise _no_feature("constant-feature", "no column has two different values", table)
    kept = np.flatnonzero(known & ~np.isnan(values[:, varies]).all(axis=1))
    matrix = _merged(values[kept][:, varies], index[kept], len(genes))
    columns = np.array(list(numbers))
    feature = Feature(stem_of(table.path.name), matrix, tuple(columns[varies].tolist()))
    n_genes = int(feature.known.sum())
    dropped |= {"blank row": int(blank.sum()), NO_VALUE: int(known.sum()) - len(kept)}
    dropped[MERGED] = len(kept) - n_genes
    counts = Counts(n_genes + sum(dropped.values()), n_genes, dropped)
    left_out["text_columns_left_out"] = [text for text in texts if text != gene]
    left_out["columns_of_one_value_left_out"] = columns[~varies].tolist()
    left_out["sheets_left_out"] = list(other_sheets)
    notes: dict[str, int | str] = {
        "width": feature.width,
        "genes": n_genes,
        "missing_values": f"{feature.missing:.1%}",
        "genes_by": gene,
        **table.notes,
        **{why: _joined(some) for why, some in left_out.items() if some},
        **unresolved,
    }
    several = np.flatnonzero(np.bincount(index[kept]) > 1)
    if len(several):
        some = ", ".join(genes.label(int(gene)) for gene in several[:3])
        notes["genes_with_several_rows"] = f"{len(several):,}, merged by the mean, such as {some}"
    file = table.path.name, table.sha256, reader.name
    return feature, Source(*file, counts, feature.name, notes)


def _columns(table: Table) -> tuple[dict[str, Doubles], list[str], dict[str, list[str]]]:
    """Return the numeric columns, the text columns, and others by the reason to omit them."""
    numbers: dict[str, Doubles] = {}
    texts, left_out = [], defaultdict(list)
    for series in table.frame:
        name, rows = series.name, np.arange(len(series))
        values, wrong = numbers_of(series, decimal_comma=table.decimal_comma)
        n_numbers = int((~np.isnan(values)).sum())
        is_count = np.array_equal(values, rows) or np.array_equal(values, rows + 1)
        if n_numbers < wrong.sum():
            texts.append(name)
        elif _PANDAS_INDEX.fullmatch(name) and is_count:
            left_out["index_left_out"].append(name)
        elif n_numbers:
            numbers[name] = values
            table.mark_bad(f"column '{name}' is not a finite number", name, wrong)
        elif not name.startswith("column "):
            left_out["columns_without_a_value"].append(name)
    return numbers, texts, left_out


def _no_feature(code: str, what: str, table: Table) -> NoFeatureError:
    fix = "Name the genes by systematic name, standard name or alias, and add columns of numbers."
    return NoFeatureError(what, code=code, where=table.path, fix=fix)


def _gene_column(table: Table, texts: Sequence[str], genes: Genes) -> str:
    """Return the column that names the most genes; raise if rows name two genes."""
    index = {name: resolve_strains(genes, table.frame[name]) for name in texts}
    best = max(index, key=lambda name: int((index[name] >= 0).sum()))
    for name, other in index.items():
        both = (index[best] >= 0) & (other >= 0)
        differ = both & (index[best] != other)
        if 2 * both.sum() >= len(table) and 20 * differ.sum() > both.sum():
            line = table.lines[int(np.argmax(differ))]
            what = f"columns '{best}' and '{name}' name two genes per row, first in line {line}"
            raise _no_feature("two-genes-per-row", what, table)
    return best


def _merged(values: Floats, index: Ints, n_genes: int) -> Floats:
    """Return the mean of each gene's rows without missing values, independent of their order."""
    matrix = np.full((n_genes, values.shape[1]), np.nan, dtype=np.float32)
    matrix[index] = values
    for gene in np.flatnonzero(np.bincount(index) > 1):
        # Sums depend on the order, so values are added in ascending order.
        own = np.sort(values[index == gene], axis=0).astype(np.float64)
        present = (~np.isnan(own)).sum(axis=0)
        matrix[gene] = np.where(present, np.nansum(own, axis=0) / np.maximum(present, 1), np.nan)
    return matrix


def _joined(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


reader = Reader("features_table", "feature", _find, _read)
