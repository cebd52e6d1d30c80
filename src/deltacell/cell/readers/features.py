"""From a matrix with gene names to a feature of the cell."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.cell.feature import Feature
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    check_policy,
    name_error,
    unresolved_notes,
)
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError


def feature_of(
    name: str,
    names: Sequence[str | None],
    values: npt.NDArray[Any],
    genes: Genes,
    *,
    on_unknown: OnUnresolved,
    path: Path,
    reader: str,
) -> tuple[Feature, Source]:
    """Resolve the names of a matrix's rows and make a feature of it.

    Parameters
    ----------
    name
        What to call the feature.
    names
        The gene of each row.
    values
        Numbers [rows, width]; [rows] is taken as a width of 1.
    genes
        The cell's genes. Those without a row have zeros and are not `known`.
    on_unknown
        What to do with a row whose gene is unknown or ambiguous: ``error``, or ``drop`` it with
        a count.
    path
        The file.
    reader
        Name of the reader that understood it.
    """
    check_policy(on_unknown)
    _check_shape(names, values, path)
    values = _finite(values.reshape(len(names), -1), names, path)
    written = [str(gene).strip() for gene in names]
    resolved = genes.resolve(written)
    if on_unknown == "error" and not resolved.found.all():
        row = int(np.argmin(resolved.found))
        raise name_error(genes, written[row], path, place=f" (row {row + 1})")
    rows = np.flatnonzero(resolved.found)
    index = resolved.index[rows]
    _check_once(genes, written, rows, index, path)
    matrix = np.zeros((len(genes), values.shape[1]), dtype=np.float32)
    matrix[index] = values[rows]
    known = np.zeros(len(genes), dtype=bool)
    known[index] = True
    counts = Counts(
        len(written),
        len(rows),
        {
            UNKNOWN_GENE: int((resolved.index == UNKNOWN).sum()),
            AMBIGUOUS_NAME: int((resolved.index == AMBIGUOUS).sum()),
        },
    )
    not_found = unresolved_notes(written, resolved.index)
    notes: dict[str, int | str] = {"width": matrix.shape[1], **not_found}
    source = Source(path.name, _sha256(path), reader, counts, into=name, notes=notes)
    return Feature(name, matrix, known), source


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


def _finite(
    values: npt.NDArray[Any], names: Sequence[str | None], path: Path
) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    bad = ~np.isfinite(numbers)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"row {row + 1} ('{names[row]}'), value {column + 1}: {values[row, column]} is not a "
            "finite number",
            where=path,
            fix="Leave out the rows of genes without values; they are filled with zeros.",
        )
    return numbers


def _check_once(
    genes: Genes,
    written: Sequence[str],
    rows: npt.NDArray[np.int64],
    index: npt.NDArray[np.int64],
    path: Path,
) -> None:
    first_row: dict[int, int] = {}
    for row, gene in zip(rows.tolist(), index.tolist(), strict=True):
        first = first_row.setdefault(gene, row)
        if first != row:
            raise InputError(
                f"the gene {genes.label(gene)} stands twice: as '{written[first]}' in row "
                f"{first + 1} and as '{written[row]}' in row {row + 1}",
                where=path,
                fix="Keep one row for each gene.",
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
