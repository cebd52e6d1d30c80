"""From a matrix with gene names to a feature of the cell."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.feature import Feature
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes, Resolved
from deltacell.cell.readers.names import OnUnresolved, check_policy, name_error, unresolved_notes
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError

#: Why a row is not one of its own: the values of a gene's rows become their mean.
MERGED = "merged with another row of its gene"
#: Why a row is left out that has a gene and no number.
NO_VALUE = "no value"

_EXAMPLES = 3
# What follows the gene in a strain ID (YAL001C_tsq508) or marks its deletion.
_STRAIN = r"(?:_.*|[\u0394\u2206])$"


class NoFeatureError(InputError):
    """A table that has the form of a feature and holds none for this cell."""


def resolve_strains(genes: Genes, names: pl.Series) -> Resolved:
    """Look up genes by name or by the ID of a strain, such as ``YBR160W_dma12``."""
    index = genes.resolve(names).index
    unknown = index == UNKNOWN
    if unknown.any():
        bare = names.filter(pl.Series(unknown)).str.strip_chars().str.replace(_STRAIN, "")
        index = index.copy()
        index[unknown] = genes.resolve(bare).index
    return Resolved(index)


def feature_of(
    name: str,
    names: Sequence[str | None],
    values: npt.NDArray[Any],
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

    Parameters
    ----------
    name
        What to call the feature.
    names
        The gene or the strain of each row.
    values
        Numbers [rows, width], NaN where one is missing; [rows] is taken as a width of 1.
    genes
        The cell's genes. Those without a row have no value.
    on_unknown
        What to do with a row whose gene is unknown or ambiguous: ``error``, or ``drop`` it with
        a count.
    path
        The file.
    reader
        Name of the reader that understood it.
    columns
        Names of the columns, where they have any.
    lines
        The line that each row is written in; without, rows are counted.
    notes, left_out
        What the reader has to say, and the rows that it left out by reason.
    """
    check_policy(on_unknown)
    _check_shape(names, values, path)
    values = _not_infinite(values.reshape(len(names), -1), names, path)
    written = pl.Series([str(gene).strip() for gene in names], dtype=pl.String)
    index = resolve_strains(genes, written).index
    found = index >= 0
    if on_unknown == "error" and not found.all():
        row = int(np.argmin(found))
        line = None if lines is None else int(lines[row])
        place = f" (row {row + 1})" if lines is None else ""
        raise name_error(genes, written[row], path, line=line, place=place)
    if not found.any():
        examples = ", ".join(f"'{gene}'" for gene in written.unique(maintain_order=True)[:3])
        raise NoFeatureError(
            f"none of its {len(written):,} rows names a gene of the cell; the names are such as "
            f"{examples}",
            where=path,
            fix="Name the genes by systematic name, standard name or alias.",
        )
    valued = ~np.isnan(values).all(axis=1)
    rows = np.flatnonzero(found & valued)
    if not len(rows):
        raise NoFeatureError("no gene of the cell has a value in it", where=path)
    matrix = _merged(values[rows], index[rows], len(genes))
    kept = len(np.unique(index[rows]))
    outside = dict(left_out or {})
    counts = Counts(
        len(written) + sum(outside.values()),
        kept,
        {
            **outside,
            UNKNOWN_GENE: int((index == UNKNOWN).sum()),
            AMBIGUOUS_NAME: int((index == AMBIGUOUS).sum()),
            NO_VALUE: int((found & ~valued).sum()),
            MERGED: len(rows) - kept,
        },
    )
    feature = Feature(name, matrix, tuple(columns))
    told = {
        "width": feature.width,
        "genes": kept,
        "missing_values": f"{feature.missing:.1%}",
        **_several_rows(genes, index, rows, lines),
        **(notes or {}),
        **unresolved_notes(written, index),
    }
    return feature, Source(path.name, _sha256(path), reader, counts, into=name, notes=told)


def _merged(values: npt.NDArray[np.float32], index: Ints, n_genes: int) -> npt.NDArray[np.float32]:
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
    mean = total / np.maximum(present, 1)
    matrix[gene[starts]] = np.where(present > 0, mean, np.nan)
    return matrix


def _several_rows(genes: Genes, index: Ints, rows: Ints, lines: Ints | None) -> dict[str, str]:
    """Return which genes have several rows, for the notes of a source."""
    where: dict[int, list[int]] = {}
    for row in rows.tolist():
        where.setdefault(int(index[row]), []).append(row + 1 if lines is None else int(lines[row]))
    several = {gene: places for gene, places in where.items() if len(places) > 1}
    if not several:
        return {}
    unit = "rows" if lines is None else "lines"
    first = "; ".join(
        f"{genes.label(gene)} in {unit} {', '.join(map(str, places))}"
        for gene, places in list(several.items())[:_EXAMPLES]
    )
    return {"genes_with_several_rows": f"{len(several):,}, merged by the mean, such as {first}"}


def _check_shape(names: Sequence[str | None], values: npt.NDArray[Any], path: Path) -> None:
    if not len(names):
        raise InputError("there are no genes in it", where=path)
    if values.ndim not in (1, 2) or len(values) != len(names) or not values.size:
        raise InputError(
            f"the values have the shape {values.shape}, and ({len(names)}, width) was expected "
            f"for {len(names)} genes",
            where=path,
        )
    if not (np.issubdtype(values.dtype, np.number) or values.dtype == np.bool_) or np.issubdtype(
        values.dtype, np.complexfloating
    ):
        raise InputError(f"the values are of type {values.dtype}, not numbers", where=path)
    unnamed = [row for row, gene in enumerate(names, 1) if gene is None or not str(gene).strip()]
    if unnamed:
        raise InputError(f"row {unnamed[0]} has no gene name", where=path)


def _not_infinite(
    values: npt.NDArray[Any], names: Sequence[str | None], path: Path
) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    bad = np.isinf(numbers)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"row {row + 1} ('{names[row]}'), value {column + 1}: {values[row, column]} is not a "
            "finite number",
            where=path,
            fix="Write NaN where a value is missing.",
        )
    return numbers


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
