"""Features: tables with one row per gene or strain in text, xlsx or Parquet, npz and AnnData."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Bools, Doubles, Floats, Ints
from deltacell.cell.annotation import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    count_unresolved,
    is_systematic,
    refuse_unresolved,
    resolve_strains,
    stem_of,
    unresolved_notes,
)
from deltacell.counts import Counts, Source
from deltacell.errors import InputError, MissingExtraError
from deltacell.sheet import HEADER_WITHIN, MISSING, BadRows, Sheet, is_number, numbers_of, sheets
from deltacell.store import sha256_of_file
from deltacell.table import Table

#: Why a row is not one of its own: the values of a gene's rows become their mean.
MERGED = "merged with another row of its gene"
#: Why a row is left out that has a gene and no number.
NO_VALUE = "no value"

_PARQUET, _HDF5 = b"PAR1", b"\x89HDF\r\n\x1a\n"
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


class NoFeatureError(InputError):
    """A table that has the form of a feature and holds none for this cell."""


def feature_of(
    name: str,
    names: Sequence[str | None],
    values: AnyArray,
    genes: Genes,
    *,
    on_unknown: OnUnresolved,
    path: Path,
    reader: str,
    columns: Sequence[str] = (),
    lines: Ints | None = None,
    notes: Mapping[str, int | str] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> tuple[Feature, Source]:
    """Resolve the names of a matrix's rows and make a feature of it.

    Rows of one gene, such as its strains, become one: the mean of their present values, column by
    column. Every row is accounted for, and the notes of the source name what was merged and what
    was not found.
    """
    numbers = _checked(names, values, path)
    written = pl.Series([str(gene).strip() for gene in names], dtype=pl.String)
    index = resolve_strains(genes, written)
    refuse_unresolved(genes, written, index, on_unknown, path, lines)
    found = index >= 0
    if not found.any():
        examples = ", ".join(f"'{gene}'" for gene in written.unique(maintain_order=True)[:3])
        raise NoFeatureError(
            f"none of its {len(written):,} rows names a gene of the cell; the names are such as "
            f"{examples}",
            code="no-gene-of-the-cell",
            where=path,
            fix="Name the genes by systematic name, standard name or alias.",
        )
    valued = ~np.isnan(numbers).all(axis=1)
    rows = np.flatnonzero(found & valued)
    if not len(rows):
        raise NoFeatureError("no gene of the cell has a value in it", code="no-value", where=path)
    feature = Feature(name, _merged(numbers[rows], index[rows], len(genes)), tuple(columns))
    kept = len(np.unique(index[rows]))
    dropped = {
        **(left_out or {}),
        **count_unresolved(index),
        NO_VALUE: int((found & ~valued).sum()),
        MERGED: len(rows) - kept,
    }
    counts = Counts(kept + sum(dropped.values()), kept, dropped)
    all_notes: dict[str, int | str] = {
        "width": feature.width,
        "genes": kept,
        "missing_values": f"{feature.missing:.1%}",
        **_several_rows(genes, index, rows, lines),
        **(notes or {}),
        **unresolved_notes(written, index),
    }
    return feature, Source(path.name, sha256_of_file(path), reader, counts, name, all_notes)


def _checked(names: Sequence[str | None], values: AnyArray, path: Path) -> Floats:
    """Return the values as numbers [rows, width], none of them infinite."""

    def refused(code: str, what: str, fix: str | None = None) -> InputError:
        return InputError(what, code=code, where=path, fix=fix)

    if not len(names):
        raise refused("empty-file", "there are no genes in it")
    if values.ndim not in (1, 2) or len(values) != len(names) or not values.size:
        what = f"the values have the shape {values.shape}, and ({len(names)}, width) was expected"
        raise refused("bad-shape", what)
    if values.dtype.kind not in "biuf":
        raise refused("not-a-number", f"the values are of type {values.dtype}, not numbers")
    unnamed = [row for row, gene in enumerate(names, 1) if gene is None or not str(gene).strip()]
    if unnamed:
        raise refused("no-gene-name", f"row {unnamed[0]} has no gene name")
    values = values.reshape(len(names), -1)
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    if np.isinf(numbers).any():
        row, column = (int(i) for i in np.argwhere(np.isinf(numbers))[0])
        place = f"row {row + 1} ('{names[row]}'), value {column + 1}"
        what = f"{place}: {values[row, column]} is not a finite number"
        raise refused("not-finite", what, "Use NaN for a missing value.")
    return numbers


def _merged(values: Floats, index: Ints, n_genes: int) -> Floats:
    """Return the mean of the present values of each gene's rows, whatever their order."""
    matrix = np.full((n_genes, values.shape[1]), np.nan, dtype=np.float32)
    times = np.bincount(index, minlength=n_genes)[index]
    matrix[index[times == 1]] = values[times == 1]
    repeated, gene = values[times > 1], index[times > 1]
    if not len(repeated):
        return matrix
    # Sums are rounded, so the rows of a gene are added in an order that their values give.
    rows = np.where(np.isnan(repeated), np.float32(np.nan), repeated)
    held = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    order = np.argsort(held, kind="stable")
    order = order[np.argsort(gene[order], kind="stable")]
    rows, gene = rows[order].astype(np.float64), gene[order]
    starts = np.flatnonzero(np.diff(gene, prepend=-1))
    present = np.add.reduceat(~np.isnan(rows), starts, axis=0, dtype=np.int64)
    total = np.add.reduceat(np.nan_to_num(rows), starts, axis=0)
    matrix[gene[starts]] = np.where(present > 0, total / np.maximum(present, 1), np.nan)
    return matrix


def _several_rows(genes: Genes, index: Ints, rows: Ints, lines: Ints | None) -> dict[str, str]:
    """Return which genes have several rows, for the notes of a source."""
    where: dict[int, list[int]] = {}
    for row in rows.tolist():
        where.setdefault(int(index[row]), []).append(row + 1 if lines is None else int(lines[row]))
    unit = "rows" if lines is None else "lines"
    several = [
        f"{genes.label(gene)} in {unit} {', '.join(map(str, places))}"
        for gene, places in where.items()
        if len(places) > 1
    ]
    if not several:
        return {}
    examples = "; ".join(several[:3])
    return {"genes_with_several_rows": f"{len(several):,}, merged by the mean, such as {examples}"}


def _recognise_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a table of numbers with a header and one gene or strain per row.

    The genes are a column of names that is called so (``gene``, ``ORF``, ``Strain ID``, …) or
    that has names of yeast in it; other columns may name the same gene. A table with two genes in
    a row is a network or a screen and never a feature.
    """
    try:
        if _magic(path, len(_PARQUET)) == _PARQUET:
            return is_feature_table(_top_of_parquet(Path(path)))
        return _form(sheets(path)) is not None
    except (InputError, pl.exceptions.PolarsError, OSError):
        return False


def is_feature_table(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header and the rows below it are those of a feature table."""
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    header = [name.strip() for name in rows[0]]
    below = [row for row in rows[1:] if len(row) == len(header) and any(f.strip() for f in row)]
    if not below or len(below) * 2 < len(rows) - 1:
        return False
    columns = [[row[i].strip() for row in below] for i in range(len(header))]
    present = [[f for f in column if f.lower() not in MISSING] for column in columns]
    numbers = [i for i, f in enumerate(present) if f and 2 * sum(map(is_number, f)) >= len(f)]
    named = [
        i
        for i, fields in enumerate(present)
        if fields and i not in numbers and _may_be_genes(header[i], fields)
    ]
    if not numbers or not named or any(_is_gene_like(header[i]) for i in named):
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
    return bool(_OF_A_GENE.search(header)) or 2 * sum(map(_is_gene_like, fields)) >= len(fields)


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
    differ = any(a != b for a, b in pairs)
    if first and second:
        return differ
    if _OF_AN_ALLELE.search(header[i]) or _OF_AN_ALLELE.search(header[j]):
        return False
    if first == second:
        return differ
    # A systematic and another name: each of either has to go with one of the other.
    distinct = set(pairs)
    return any(len({pair[side] for pair in distinct}) < len(distinct) for side in (0, 1))


def _form(found: Iterable[Sheet]) -> tuple[Sheet, int] | None:
    """Return the first sheet that is a feature table and the row of its header; None if none is."""
    for sheet in found:
        if sheet.separator == " ":
            continue
        for at, header in sheet.headers():
            named = ["" if name == f"column {i}" else name for i, name in enumerate(header, 1)]
            if is_feature_table([named, *sheet.rows[at + 1 : at + HEADER_WITHIN]]):
                return sheet, at
    return None


def _magic(path: str | os.PathLike[str], n: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(n)


def _top_of_parquet(path: Path) -> list[list[str]]:
    top = pl.scan_parquet(path).head(20).collect()
    top = top.drop([c for c in top.columns if _PANDAS_INDEX.fullmatch(c)])
    if any(d.is_nested() and not getattr(d, "inner", pl.Null()).is_numeric() for d in top.dtypes):
        return []
    # A list of numbers is as good as a column of them.
    shown = [
        pl.lit("1.5").alias(c) if top[c].dtype.is_nested() else pl.col(c).cast(pl.String)
        for c in top.columns
    ]
    return [top.columns, *([f or "" for f in row] for row in top.select(shown).iter_rows())]


@dataclass(frozen=True)
class _Written:
    """A table as it is written: columns of strings, and numbers where the format has them."""

    table: Table
    decimal_comma: bool = False
    whole: frozenset[str] = frozenset()  # columns of a list, which stay together
    notes: dict[str, int | str] = field(default_factory=dict)


class _Column(NamedTuple):
    name: str
    values: Doubles  # NaN where there is no number
    bad: Bools  # fields that hold something else

    @property
    def n_numbers(self) -> int:
        return int((~np.isnan(self.values)).sum())


def _read_table(
    path: str | os.PathLike[str],
    genes: Genes,
    name: str | None = None,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Return the feature of a table.

    A field that is empty, ``NA``, ``n/a``, ``NaN``, ``#N/A`` or ``null`` is a missing value.
    Numbers may have decimal commas. Columns of text and columns of one value are left out, and the
    notes of the source name them. Text among numbers is an error. Of the columns with names, the
    one with the most genes of the cell is taken.
    """
    path = Path(path)
    written = _opened(path)
    table, notes = written.table, written.notes
    if not len(table):
        raise InputError("there is a header and no row", code="empty-file", where=path)
    numbers, texts = _classified(written)
    gene = _gene_column(table, texts, genes)
    names = table.frame[gene].str.strip_chars()
    unnamed = (names == "").to_numpy()
    values = np.stack([c.values for c in numbers], axis=1) if numbers else np.empty((len(names), 0))
    blank = unnamed & np.isnan(values).all(axis=1)
    bad = BadRows(path)
    for column in numbers:
        what = f"column '{column.name}' is not a finite number"
        bad.add_where(what, table, column.name, column.bad)
    without = unnamed & ~blank
    bad.add("there are values and no gene name", table.lines[without], [""] * int(without.sum()))
    bad.refuse()
    if not numbers:
        raise NoFeatureError("it has no column of numbers", code="no-value", where=path)
    notes = {"genes_by": gene, **notes}
    left = [t for t in texts if t.name != gene]
    if left:
        among = [f" ({t.n_numbers:,} numbers among {t.bad.sum():,} texts)" for t in left]
        said = [f"'{t.name}'{a if t.n_numbers else ''}" for t, a in zip(left, among, strict=True)]
        notes["text_columns_left_out"] = _joined(said)
    rows = np.flatnonzero(~blank)
    feature, source = feature_of(
        name or stem_of(path.name),
        names.gather(rows).to_list(),
        values[rows],
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=features_table.NAME,
        columns=[c.name for c in numbers],
        lines=table.lines[rows],
        notes=notes,
        left_out={"blank row": int(blank.sum())},
    )
    return _without_constant(feature, source, written)


def _opened(path: Path) -> _Written:
    if _magic(path, len(_PARQUET)) == _PARQUET:
        return _opened_parquet(path)
    form = _form(sheets(path))
    if form is None:
        raise InputError(
            "it has no header with a column of genes and columns of numbers, or it names two genes "
            "per row",
            code="not-a-feature",
            where=path,
            fix="Call the column of names gene, and give every column a name.",
        )
    sheet, at = form
    bad = BadRows(path)
    table, notes = sheet.below(at, bad)
    bad.refuse()
    others = [] if sheet.workbook is None else sheet.workbook.sheet_names()
    if len(others) > 1:
        notes["sheets_left_out"] = _joined([f"'{name}'" for name in others if name != sheet.name])
    return _Written(table, sheet.decimal_comma, notes=notes)


def _opened_parquet(path: Path) -> _Written:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        what = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise InputError(what, code="unreadable", where=path) from error
    whole: list[str] = []
    for column in [c for c in frame.columns if frame[c].dtype.is_nested()]:
        lists = frame[column].cast(pl.List(pl.Float64))
        lengths = lists.list.len().to_list()
        wrong = [row for row, n in enumerate(lengths, 1) if n is None or n != lengths[0]]
        if wrong:
            what = f"row {wrong[0]}: lists of equal length were expected"
            raise InputError(what, code="bad-shape", where=path)
        fields = [f"{column} {i}" for i in range(1, (lengths[0] if lengths else 0) + 1)]
        parts = [lists.list.get(i).alias(name) for i, name in enumerate(fields)]
        frame = frame.with_columns(parts).drop(column)
        whole += fields
    frame = frame.with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String), pl.col(pl.Boolean).cast(pl.Float64)
    ).with_columns(pl.col(pl.String).fill_null(""))
    lines = np.arange(1, frame.height + 1, dtype=np.int64)
    return _Written(Table(frame, path, lines, ""), whole=frozenset(whole))


def _classified(written: _Written) -> tuple[list[_Column], list[_Column]]:
    """Return the columns of numbers and those of text; columns without a value are noted."""
    numbers, texts, empty, unnamed = [], [], [], 0
    for series in written.table.frame:
        name = series.name
        if series.dtype == pl.String:
            values, bad = numbers_of(series, decimal_comma=written.decimal_comma)
        else:
            values = series.cast(pl.Float64, strict=False).to_numpy().astype(np.float64, copy=True)
            bad = np.abs(values) > float(np.finfo(np.float32).max)
        column = _Column(name, values, bad)
        if not column.n_numbers and not bad.any():
            unnamed += name.startswith("column ")
            empty += [] if name.startswith("column ") else [f"'{name}'"]
        elif column.n_numbers < bad.sum():
            texts.append(column)
        elif _PANDAS_INDEX.fullmatch(name) and _is_count(values):
            written.notes["index_left_out"] = f"'{name}'"
        else:
            numbers.append(column)
    if empty:
        written.notes["columns_without_a_value"] = _joined(empty)
    if unnamed:
        written.notes["empty_columns"] = unnamed
    return numbers, texts


def _is_count(values: Doubles) -> bool:
    return any(np.array_equal(values, np.arange(start, start + len(values))) for start in (0, 1))


def _gene_column(table: Table, texts: Sequence[_Column], genes: Genes) -> str:
    """Return the column that names the most genes; two genes in a row are refused."""
    if not texts:
        raise NoFeatureError("it has no column of names", code="not-a-feature", where=table.path)
    index = {t.name: resolve_strains(genes, table.frame[t.name]) for t in texts}
    best = max(index, key=lambda name: int((index[name] >= 0).sum()))
    for name, other in index.items():
        both = (index[best] >= 0) & (other >= 0)
        differ = both & (index[best] != other)
        if 2 * both.sum() >= len(table) > 0 and 20 * differ.sum() > both.sum():
            row = int(np.argmax(differ))
            first, second = (table.frame[c][row] for c in (best, name))
            raise NoFeatureError(
                f"its columns '{best}' and '{name}' name two genes per row, first '{first}' and "
                f"'{second}' in line {table.lines[row]}",
                code="two-genes-per-row",
                where=table.path,
                fix="For a network call them gene1, gene2, weight: docs/how-to/networks.md",
            )
    return best


def _without_constant(
    feature: Feature, source: Source, written: _Written
) -> tuple[Feature, Source]:
    """Return the feature without columns that say the same of all genes, and what they say."""
    known = feature.values[feature.known]
    present = ~np.isnan(known)
    low = np.where(present, known, np.inf).min(axis=0)
    varies = low < np.where(present, known, -np.inf).max(axis=0)
    varies |= np.array([name in written.whole for name in feature.columns])
    if varies.all():
        return feature, source
    said = []
    for i in np.flatnonzero(~varies):
        there = int(present[:, i].sum())
        what = f"{low[i]:g} for {there:,} genes" if there else "no value for a gene of the cell"
        said.append(f"'{feature.columns[i]}' ({what})")
    if not varies.any():
        raise NoFeatureError(
            f"no column has two different values: {_joined(said)}",
            code="constant-feature",
            where=written.table.path,
            fix="Write a number for every gene, such as 1 and 0.",
        )
    columns = tuple(name for name, keep in zip(feature.columns, varies, strict=True) if keep)
    left = Feature(feature.name, feature.values[:, varies], columns)
    notes = {**source.notes, "width": left.width, "missing_values": f"{left.missing:.1%}"}
    notes["columns_of_one_value_left_out"] = _joined(said)
    counts = source.counts
    lost = int(feature.known.sum() - left.known.sum())
    if lost:
        dropped = {"only values of a column left out": lost}
        counts = counts.then(Counts(counts.kept, counts.kept - lost, dropped))
        notes["genes"] = counts.kept
    return left, replace(source, counts=counts, notes=notes)


def _joined(said: Sequence[str], most: int = 12) -> str:
    more = f" and {len(said) - most:,} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more


def _recognise_npz(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a zip that holds nothing but arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    return bool(members) and all(member.endswith(".npy") for member in members)


def _read_npz(
    path: str | os.PathLike[str],
    genes: Genes,
    name: str | None = None,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Return the feature of the arrays ``genes`` [n], of strings, and ``values`` [n, width]."""
    path = Path(path)
    fix = "Save it with numpy.savez(file, genes=array of str, values=array of numbers)."
    try:
        with np.load(path, allow_pickle=False) as archive:
            if missing := {"genes", "values"} - set(archive.files):
                what = f"the array '{min(missing)}' is missing; there is {archive.files}"
                raise InputError(what, code="missing-columns", where=path, fix=fix)
            names, values = archive["genes"], archive["values"]
    except (
        *(OSError, ValueError, AttributeError, TypeError),
        *(zipfile.BadZipFile, zlib.error, EOFError),
    ) as error:
        what = f"cannot be read as npz: {str(error).splitlines()[0]}"
        raise InputError(what, code="unreadable", where=path, fix=fix) from error
    if names.ndim != 1 or names.dtype.kind not in "US":
        what = f"'genes' has the type {names.dtype} and the shape {names.shape}, not strings (n,)"
        raise InputError(what, code="bad-shape", where=path, fix=fix)
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8")
    called, reader = name or stem_of(path.name), features_npz.NAME
    file: dict[str, Any] = {"on_unknown": on_unknown, "path": path, "reader": reader}
    return feature_of(called, names.tolist(), values, genes, **file)


def _recognise_anndata(path: str | os.PathLike[str]) -> bool:
    """Whether the file is HDF5 and called ``.h5ad``, which its first bytes cannot tell."""
    return _magic(path, len(_HDF5)) == _HDF5 and Path(path).suffix.lower() == ".h5ad"


def _read_anndata(
    path: str | os.PathLike[str],
    genes: Genes,
    name: str | None = None,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Return the feature of the matrix X.

    Whichever of its observations and variables has more names that are genes of the cell is taken
    for the genes; the other is what is known of them.
    """
    try:
        import anndata
    except ImportError as error:
        raise MissingExtraError("Reading AnnData files", "anndata") from error
    path = Path(path)
    try:
        data = anndata.read_h5ad(path)
    except Exception as error:
        # anndata lets through whatever h5py and its own versions of the format raise.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        what = f"cannot be read as AnnData: {reason}"
        raise InputError(what, code="unreadable", where=path) from error
    if data.X is None:
        raise InputError("the file has no matrix X", code="no-value", where=path)
    matrix = data.X.toarray() if hasattr(data.X, "toarray") else np.asarray(data.X)
    rows, columns = data.obs_names.tolist(), data.var_names.tolist()
    n_rows, n_columns = (int(genes.resolve(names).found.sum()) for names in (rows, columns))
    if n_rows == n_columns:
        raise InputError(
            "cannot tell whether the genes are the observations or the variables: of each, "
            f"{n_rows} are genes of the cell",
            code="ambiguous-axes",
            where=path,
            fix="Name either of them after genes: systematic names, standard names or aliases.",
        )
    if n_columns > n_rows:
        rows, columns, matrix = columns, rows, matrix.T
    return feature_of(
        name or stem_of(path.name),
        rows,
        matrix,
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=features_anndata.NAME,
        columns=columns if len(set(columns)) == len(columns) else [],
    )


features_table = Reader("features_table", _recognise_table, _read_table)
features_npz = Reader("features_npz", _recognise_npz, _read_npz)
features_anndata = Reader("features_anndata", _recognise_anndata, _read_anndata)
