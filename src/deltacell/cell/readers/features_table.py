"""Features in a table: one row per gene or strain, in text, xlsx or Parquet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.arrays import Bools, Ints
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.features import NoFeatureError, feature_of, resolve_strains
from deltacell.cell.readers.head import stem_of
from deltacell.cell.readers.names import OnUnresolved, is_systematic
from deltacell.counts import Counts, Source
from deltacell.errors import InputError
from deltacell.sheet import MISSING, BadRows, Sheet, is_number, numbers_of, sheets

NAME = "features_table"

_PARQUET = b"PAR1"
_GENE_NAME = re.compile(r"[A-Za-z][\w.:@'()\u0394\u2206,-]*")
_STANDARD_NAME = re.compile(r"[A-Za-z]{3}\d{1,3}(?:[_-].*)?[\u0394\u2206]?")
_OF_A_GENE = re.compile(r"gene|orf|strain|systematic|locus|symbol|protein", re.IGNORECASE)
# Headers of columns in which a gene has a name that is not its own.
_OF_AN_ALLELE = re.compile(r"strain|allele|alias|synonym|description", re.IGNORECASE)
# Headers that tell one gene of several in a row.
_ONE_OF_SEVERAL = re.compile(
    r"(?:.*[\W_])?(?:query|array|source|target|from|to|tf|regulator|factor|interactor|bait|prey|"
    r"partner|neighbou?r)s?(?:[\W_].*)?"
    r"|(?:gene|orf|protein|node|name|id|strain|locus|systematic|symbol|allele)"
    r"(?:[\W_]*(?:name|id|orf))*[\W_]*(?:\d{1,2}|[a-eijxyuv])(?:[\W_]*(?:name|id|orf))*"
    r"|.*[\W_](?:\d|[abijxy])|[a-eijxyuv]",
    re.IGNORECASE,
)
_PANDAS_INDEX = re.compile(r"__index_level_\d+__|column 1|Unnamed: 0")
_HEADER_WITHIN = 20


def recognise(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a table of numbers with a header and one gene or strain per row.

    The genes are a column of names that is called so (``gene``, ``ORF``, ``Strain ID``, …) or
    that has names of yeast in it; other columns may name the same gene. A table with two genes in
    a row is a network or a screen and never a feature.

    Parameters
    ----------
    path
        Text, plain or packed, or xlsx, see `deltacell.sheet`; or Parquet.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == _PARQUET:
            return is_feature_table(_top_of_parquet(path))
        return _form(sheets(path)) is not None
    except (InputError, pl.exceptions.PolarsError, OSError):
        return False


def read(
    path: str | os.PathLike[str],
    genes: Genes,
    name: str | None = None,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Return the feature of a file.

    A field that is empty, ``NA``, ``n/a``, ``NaN``, ``#N/A`` or ``null`` is a missing value.
    Numbers may have decimal commas. Columns of text and columns of one value are left out, and the
    notes of the source name them. Text among numbers is an error. Of the columns with names, the
    one with the most genes of the cell is taken.

    Parameters
    ----------
    path
        A file that `recognise` accepts.
    genes
        The cell's genes.
    name
        What to call the feature. None: the file's name without its ending.
    on_unknown
        What to do with a row whose gene is unknown or ambiguous: ``error`` or ``drop``.
    """
    path = Path(path)
    table = _opened(path)
    if not table.frame.height:
        raise InputError("there is a header and no row", where=path)
    numbers, texts = _classified(table)
    gene = _gene_column(table, texts, genes)
    names = table.frame[gene].str.strip_chars()
    unnamed = (names == "").to_numpy()
    values = np.stack([c.values for c in numbers], axis=1) if numbers else np.empty((len(names), 0))
    blank = unnamed & np.isnan(values).all(axis=1)
    _check_fields(table, numbers, unnamed & ~blank)
    if not numbers:
        raise NoFeatureError("it has no column of numbers", where=path)
    rows = np.flatnonzero(~blank)
    feature, source = feature_of(
        name or stem_of(path.name),
        names.gather(rows).to_list(),
        values[rows],
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=NAME,
        columns=[c.name for c in numbers],
        lines=table.lines[rows],
        notes={"genes_by": gene, **_left_out(table, [t for t in texts if t.name != gene])},
        left_out={"blank row": int(blank.sum())},
    )
    return _without_constant(feature, source, table)


@dataclass(frozen=True)
class _Written:
    """A table as it is written: columns of strings, and numbers where the format has them."""

    frame: pl.DataFrame
    path: Path
    lines: Ints
    decimal_comma: bool = False
    whole: frozenset[str] = frozenset()
    notes: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Column:
    """A column as numbers, NaN where there is none, and which fields hold something else."""

    name: str
    values: npt.NDArray[np.float64]
    bad: Bools

    @property
    def n_numbers(self) -> int:
        return int((~np.isnan(self.values)).sum())


def is_feature_table(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header and the rows below it are those of a feature table.

    Parameters
    ----------
    rows
        The fields of the first lines.
    """
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    header = [field_.strip() for field_ in rows[0]]
    below = [row for row in rows[1:] if len(row) == len(header) and any(f.strip() for f in row)]
    if not below or len(below) * 2 < len(rows) - 1:
        return False
    columns = [[row[i].strip() for row in below] for i in range(len(header))]
    present = [[f for f in column if f.lower() not in MISSING] for column in columns]
    n_numbers = [sum(is_number(f) for f in column) for column in present]
    numbers = [i for i, fields in enumerate(present) if fields and 2 * n_numbers[i] >= len(fields)]
    if not numbers:
        return False
    named = [
        i
        for i, fields in enumerate(present)
        if fields and i not in numbers and _may_be_genes(header[i], fields)
    ]
    if not named or any(_is_gene_like(header[i]) for i in named):
        return False
    # A number may be a dose in the header of a column, or a value where there is no header.
    called_so = any(_OF_A_GENE.search(header[i]) for i in named)
    if not called_so and any(is_number(header[i]) for i in numbers):
        return False
    if any(_ONE_OF_SEVERAL.fullmatch(header[i]) for i in named):
        return False
    return not any(_are_two_genes(header, columns, i, j) for i, j in combinations(named, 2))


def _may_be_genes(header: str, fields: Sequence[str]) -> bool:
    if 5 * sum(_GENE_NAME.fullmatch(f) is not None for f in fields) < 4 * len(fields):
        return False
    like = sum(map(_is_gene_like, fields))
    return _OF_A_GENE.search(header) is not None or 2 * like >= len(fields)


def _is_gene_like(name: str) -> bool:
    return is_systematic(_bare(name)) or _STANDARD_NAME.fullmatch(name) is not None


def _bare(name: str) -> str:
    return name.split("_")[0].upper()


def _are_two_genes(header: Sequence[str], columns: Sequence[Sequence[str]], i: int, j: int) -> bool:
    """Whether two columns of names cannot be two names of one gene."""
    if header[i].lower() == header[j].lower():
        return True
    pairs = [(_bare(a), _bare(b)) for a, b in zip(columns[i], columns[j], strict=True) if a and b]
    first, second = (
        2 * sum(is_systematic(pair[side]) for pair in pairs) >= len(pairs) for side in (0, 1)
    )
    if first and second:
        return any(a != b for a, b in pairs)
    if _OF_AN_ALLELE.search(header[i]) or _OF_AN_ALLELE.search(header[j]):
        return False
    if first == second:
        return any(a != b for a, b in pairs)
    distinct = set(pairs)
    return len({a for a, _ in distinct}) < len(distinct) or len({b for _, b in distinct}) < len(
        distinct
    )


def _form(found: Sequence[Sheet]) -> tuple[Sheet, int] | None:
    """Return the first sheet that is a feature table and the row of its header; None if none is."""
    for sheet in found:
        if sheet.separator == " ":
            continue
        for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
            below = sheet.rows[at + 1 : at + _HEADER_WITHIN]
            if is_feature_table([_given_header(sheet, at), *below]):
                return sheet, at
    return None


def _given_header(sheet: Sheet, at: int) -> list[str]:
    """Return the header with an empty name where a column has none."""
    named = sheet.header(at)
    return ["" if name == f"column {i}" else name for i, name in enumerate(named, 1)]


def _top_of_parquet(path: Path) -> list[list[str]]:
    top = pl.scan_parquet(path).head(20).collect()
    top = top.drop([c for c in top.columns if _PANDAS_INDEX.fullmatch(c)])
    # A list of numbers is as good as a column of them.
    shown = [
        pl.lit("1.5").alias(c) if top[c].dtype.is_nested() else pl.col(c).cast(pl.String)
        for c in top.columns
    ]
    if any(d.is_nested() and not getattr(d, "inner", pl.Null()).is_numeric() for d in top.dtypes):
        return []
    return [top.columns, *([f or "" for f in row] for row in top.select(shown).iter_rows())]


def _opened(path: Path) -> _Written:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == _PARQUET:
        return _opened_parquet(path)
    form = _form(sheets(path))
    if form is None:
        raise _not_understood(path)
    sheet, at = form
    bad = BadRows(path)
    table, notes = sheet.below(at, bad)
    bad.refuse()
    others = [] if sheet.workbook is None else sheet.workbook.sheet_names()
    if len(others) > 1:
        notes["sheets_left_out"] = _listed([name for name in others if name != sheet.name])
    return _Written(table.frame, path, table.lines, sheet.decimal_comma, notes=notes)


def _opened_parquet(path: Path) -> _Written:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot be read as Parquet: {reason}", where=path) from error
    whole: list[str] = []
    for column in [c for c in frame.columns if frame[c].dtype.is_nested()]:
        lists = frame[column].cast(pl.List(pl.Float64))
        lengths = lists.list.len().to_list()
        wrong = [row for row, n in enumerate(lengths, 1) if n is None or n != lengths[0]]
        if wrong:
            raise InputError(f"row {wrong[0]}: lists of equal length were expected", where=path)
        fields = [f"{column} {i}" for i in range(1, (lengths[0] if lengths else 0) + 1)]
        frame = frame.with_columns(
            lists.list.get(i).alias(name) for i, name in enumerate(fields)
        ).drop(column)
        whole += fields
    frame = frame.with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String), pl.col(pl.Boolean).cast(pl.Float64)
    ).with_columns(pl.col(pl.String).fill_null(""))
    lines = np.arange(1, frame.height + 1, dtype=np.int64)
    return _Written(frame, path, lines, whole=frozenset(whole))


def _not_understood(path: Path) -> InputError:
    return InputError(
        "it has no header with a column of genes and columns of numbers, or it names two genes per "
        "row",
        where=path,
        fix="Call the column of names gene, and give every column a name.",
    )


def _classified(table: _Written) -> tuple[list[_Column], list[_Column]]:
    """Return the columns of numbers and those of text; columns without a value are noted."""
    numbers, texts, empty, unnamed = [], [], [], 0
    for name in table.frame.columns:
        column = _column(table.frame[name], name, table.decimal_comma)
        n_bad = int(column.bad.sum())
        if not column.n_numbers and not n_bad:
            unnamed += name.startswith("column ")
            empty += [] if name.startswith("column ") else [name]
        elif column.n_numbers < n_bad:
            texts.append(column)
        elif _PANDAS_INDEX.fullmatch(name) and _is_count(column):
            table.notes["index_left_out"] = f"'{name}'"
        else:
            numbers.append(column)
    if empty:
        table.notes["columns_without_a_value"] = _listed(empty)
    if unnamed:
        table.notes["empty_columns"] = unnamed
    return numbers, texts


def _column(series: pl.Series, name: str, decimal_comma: bool) -> _Column:
    if series.dtype != pl.String:
        values = series.cast(pl.Float64, strict=False).to_numpy().astype(np.float64, copy=True)
        return _Column(name, values, ~np.isnan(values) & ~_fits(values))
    return _Column(name, *numbers_of(series, decimal_comma=decimal_comma))


def _fits(values: npt.NDArray[np.float64]) -> Bools:
    fits: Bools = np.abs(values) <= float(np.finfo(np.float32).max)
    return fits


def _is_count(column: _Column) -> bool:
    n = len(column.values)
    return any(np.array_equal(column.values, np.arange(start, start + n)) for start in (0, 1))


def _gene_column(table: _Written, texts: Sequence[_Column], genes: Genes) -> str:
    """Return the column that names the most genes; two genes in a row are refused."""
    if not texts:
        raise NoFeatureError("it has no column of names", where=table.path)
    index = {t.name: resolve_strains(genes, table.frame[t.name]).index for t in texts}
    best = max(index, key=lambda name: int((index[name] >= 0).sum()))
    for name, other in index.items():
        both = (index[best] >= 0) & (other >= 0)
        if 2 * both.sum() >= table.frame.height > 0:
            differ = both & (index[best] != other)
            if 20 * differ.sum() > both.sum():
                row = int(np.argmax(differ))
                raise NoFeatureError(
                    f"its columns '{best}' and '{name}' name two genes per row, first "
                    f"'{table.frame[best][row]}' and '{table.frame[name][row]}' in line "
                    f"{table.lines[row]}",
                    where=table.path,
                    fix="For a network call them gene1, gene2, weight: docs/how-to/networks.md",
                )
    return best


def _check_fields(table: _Written, numbers: Sequence[_Column], unnamed: Bools) -> None:
    """Raise where a column of numbers holds something else, or a row has values and no gene."""
    bad = BadRows(table.path)
    for column in numbers:
        wrong = table.frame[column.name].filter(pl.Series(column.bad)).to_list()
        bad.add(f"column '{column.name}' is not a finite number", table.lines[column.bad], wrong)
    bad.add("there are values and no gene name", table.lines[unnamed], [""] * int(unnamed.sum()))
    bad.refuse()


def _left_out(table: _Written, texts: Sequence[_Column]) -> dict[str, int | str]:
    notes = dict(table.notes)
    if texts:
        notes["text_columns_left_out"] = _joined(
            [
                f"'{t.name}'"
                + (f" ({t.n_numbers:,} numbers among {n:,} texts)" if t.n_numbers else "")
                for t in texts
                for n in (int(t.bad.sum()),)
            ]
        )
    return notes


def _without_constant(feature: Feature, source: Source, table: _Written) -> tuple[Feature, Source]:
    """Return the feature without columns that say the same of all genes, and what they say."""
    known = feature.values[feature.known]
    present = ~np.isnan(known)
    low = np.where(present, known, np.inf).min(axis=0)
    high = np.where(present, known, -np.inf).max(axis=0)
    constant = [
        i
        for i in range(feature.width)
        if low[i] >= high[i] and feature.columns[i] not in table.whole
    ]
    if not constant:
        return feature, source
    said = list(_said(feature, low, present, constant))
    if len(constant) == feature.width:
        raise NoFeatureError(
            f"no column has two different values: {_joined(said)}",
            where=table.path,
            fix="Write a number for every gene, such as 1 and 0.",
        )
    kept = [i for i in range(feature.width) if i not in set(constant)]
    left = Feature(feature.name, feature.values[:, kept], tuple(feature.columns[i] for i in kept))
    notes = {**source.notes, "width": left.width, "missing_values": f"{left.missing:.1%}"}
    notes["columns_of_one_value_left_out"] = _joined(said)
    counts = source.counts
    lost = int(feature.known.sum() - left.known.sum())
    if lost:
        counts = counts.then(
            Counts(counts.kept, counts.kept - lost, {"only values of a column left out": lost})
        )
        notes["genes"] = counts.kept
    return left, Source(source.file, source.sha256, source.reader, counts, source.into, notes)


def _said(
    feature: Feature, low: npt.NDArray[np.float32], present: Bools, constant: Sequence[int]
) -> Iterator[str]:
    for i in constant:
        there = int(present[:, i].sum())
        what = f"{low[i]:g} for {there:,} genes" if there else "no value for a gene of the cell"
        yield f"'{feature.columns[i]}' ({what})"


def _joined(said: Sequence[str], most: int = 12) -> str:
    more = f" and {len(said) - most:,} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more


def _listed(names: Sequence[str]) -> str:
    return _joined([f"'{name}'" for name in names])
