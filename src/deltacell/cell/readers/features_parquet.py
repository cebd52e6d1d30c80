"""Features in Parquet: one column of gene names, and numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.features import feature_of
from deltacell.cell.readers.head import stem_of
from deltacell.cell.readers.names import OnUnresolved
from deltacell.counts import Source
from deltacell.errors import InputError

NAME = "features_parquet"

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def recognise(path: str | os.PathLike[str]) -> bool:
    """Whether the file is Parquet with one column of strings and numbers beside it."""
    with Path(path).open("rb") as file:
        if file.read(4) != b"PAR1":
            return False
    try:
        _columns(pq.read_schema(path), Path(path))
    except (pa.ArrowException, InputError):
        return False
    return True


def read(
    path: str | os.PathLike[str],
    genes: Genes,
    name: str | None = None,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Return the feature of a file.

    Parameters
    ----------
    path
        Parquet with exactly one column of strings, the genes, and beside it either columns of
        numbers or one column of lists of equal length. An unnamed index of numbers that pandas
        wrote is left out.
    genes
        The cell's genes.
    name
        What to call the feature. None: the file's name without its ending.
    on_unknown
        What to do with a row whose gene is unknown or ambiguous: ``error`` or ``drop``.
    """
    path = Path(path)
    try:
        gene, columns = _columns(pq.read_schema(path), path)
        table = pq.read_table(path, columns=[gene, *columns])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot be read as Parquet: {reason}", where=path) from error
    if _is_list(table.schema.field(columns[0]).type):
        values = _list_values(table[columns[0]], path)
    else:
        values = np.stack(
            [table[c].cast(pa.float64()).to_numpy(zero_copy_only=False) for c in columns], axis=1
        )
    return feature_of(
        name or stem_of(path.name),
        table[gene].cast(pa.string()).to_pylist(),
        values,
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=NAME,
    )


def _columns(schema: Any, path: Path) -> tuple[str, list[str]]:
    """Return the column of the genes and those of the values."""
    names: list[str] = [f.name for f in schema if _is_string(f.type)]
    values: list[str] = [
        f.name for f in schema if not _is_string(f.type) and not _PANDAS_INDEX.fullmatch(f.name)
    ]
    if len(names) != 1:
        found = ", ".join(f"'{n}'" for n in names) or "none"
        raise InputError(
            f"exactly one column of strings, the gene names, was expected; there is {found}",
            where=path,
        )
    lists = [n for n in values if _is_list(schema.field(n).type)]
    other = [n for n in values if n not in lists and not _is_number(schema.field(n).type)]
    if not values or other or (lists and len(values) > 1):
        listed = ", ".join(f"'{n}' ({schema.field(n).type})" for n in other or values) or "none"
        raise InputError(
            f"beside '{names[0]}', columns of numbers or one column of lists were expected; "
            f"there is {listed}",
            where=path,
        )
    return names[0], values


def _list_values(column: Any, path: Path) -> npt.NDArray[np.float64]:
    lists = column.combine_chunks()
    lengths = {None if entry is None else len(entry) for entry in lists.to_pylist()}
    if len(lengths) != 1 or None in lengths:
        row = next(
            i
            for i, entry in enumerate(lists.to_pylist())
            if entry is None or len(entry) != len(lists[0])
        )
        raise InputError(f"row {row + 1}: lists of equal length were expected", where=path)
    flat = lists.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    matrix: npt.NDArray[np.float64] = flat.reshape(len(lists), -1)
    return matrix


def _is_string(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_number(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_list(kind: Any) -> bool:
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    return bool(is_list and _is_number(kind.value_type))
