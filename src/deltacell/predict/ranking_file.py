"""A ranking as a Parquet file: the same request gives the same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.errors import InputError, StoreError
from deltacell.files import new_file

LOWEST, HIGHEST = "lowest", "highest"
LINK = pa.struct([("first", pa.string()), ("second", pa.string()), ("relation", pa.string())])
SCHEMA = pa.schema(
    [
        ("end", pa.string()),
        ("rank", pa.int32()),
        ("genes", pa.list_(pa.string())),
        ("names", pa.list_(pa.string())),
        ("score", pa.float32()),
        ("spread", pa.float32()),
        ("status", pa.string()),
        ("measured", pa.float32()),
        ("linked", pa.bool_()),
        ("relations", pa.list_(pa.string())),
        ("links", pa.list_(LINK)),
        ("pathways", pa.list_(pa.string())),
        ("complexes", pa.list_(pa.string())),
    ]
)
"""The columns; `deltacell.predict.ranking.Ranking` says what each holds."""

ROWS_A_GROUP = 50_000
_KEY = b"deltacell"
_VERSION = 1


def write_ranking(
    path: str | os.PathLike[str],
    tables: Iterable[pa.Table],
    about: Callable[[], Mapping[str, Any]],
) -> None:
    """Write a ranking whole or not at all.

    Parameters
    ----------
    path
        The file; what was there is replaced.
    tables
        Its rows in order, in pieces of any size; how they are cut leaves no trace in the file.
    about
        Gives what is said of it, as JSON, once all rows went by.
    """
    try:
        with new_file(path) as temporary, pq.ParquetWriter(temporary, SCHEMA) as writer:
            for table in _regrouped(tables, ROWS_A_GROUP):
                writer.write_table(table.cast(SCHEMA), row_group_size=ROWS_A_GROUP)
            said = {"schema": _VERSION, **about()}
            writer.add_key_value_metadata(
                {_KEY.decode(): json.dumps(said, ensure_ascii=False, sort_keys=True)}
            )
    except OSError as error:
        raise StoreError(
            f"the ranking could not be written: {error.strerror or error}",
            where=path,
            fix="Free some space or name another place with --out; the same command goes on.",
        ) from error


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what is said of a ranking.

    Parameters
    ----------
    path
        A file of `write_ranking`.
    """
    about: dict[str, Any] | None = None
    try:
        held = pq.read_metadata(path).metadata or {}
        if _KEY in held:
            about = json.loads(held[_KEY])
    except (OSError, pa.ArrowInvalid, ValueError) as error:
        raise InputError(f"this is no ranking that can be read ({error})", where=path) from error
    if about is None or about["schema"] != _VERSION:
        raise InputError(
            "this is no ranking of `deltacell predict`",
            where=path,
            fix="Name another file with --out, or replace this one with --overwrite.",
        )
    del about["schema"]
    return about


def read_rows(path: str | os.PathLike[str], slices: Sequence[tuple[int, int]]) -> pa.Table:
    """Return some rows of a ranking; of a large file no more is read than they are in.

    Parameters
    ----------
    path
        A file of `write_ranking`.
    slices
        The first row of each piece, and how many rows it has.
    """
    pieces = [SCHEMA.empty_table()]
    with pq.ParquetFile(Path(path)) as file:
        for first, n in slices:
            if not n:
                continue
            each = file.metadata.row_group(0).num_rows
            groups = range(first // each, -(-(first + n) // each))
            table = file.read_row_groups(list(groups)).replace_schema_metadata(None)
            pieces.append(table.slice(first - groups[0] * each, n).cast(SCHEMA))
    return pa.concat_tables(pieces)


def _regrouped(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Cut a stream of tables anew, so that every one but the last has as many rows."""
    waiting: list[pa.Table] = []
    held = 0
    for table in tables:
        waiting.append(table)
        held += table.num_rows
        while held >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows).combine_chunks()
            waiting, held = [whole.slice(rows)], held - rows
    if held:
        yield pa.concat_tables(waiting).combine_chunks()
