"""Scored gene sets on the disk, while a ranking is under way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.errors import StoreError
from deltacell.files import new_file
from deltacell.predict.scorer import Scored

_KEY = b"deltacell"


def write_scored(
    path: str | os.PathLike[str],
    found: Scored,
    about: Mapping[str, Any] | None = None,
    *,
    rows_a_batch: int = 4096,
) -> None:
    """Write sets to a file, whole or not at all.

    Parameters
    ----------
    path
        The file.
    found
        The sets, in the order in which they are to be read.
    about
        What else the file is to hold, as JSON.
    rows_a_batch
        How many are read at a time.
    """
    width = found.sets.shape[1]
    flat = pa.array(np.ascontiguousarray(found.sets, dtype=np.int32).reshape(-1))
    table = pa.table(
        {
            "genes": pa.FixedSizeListArray.from_arrays(flat, width),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=False),
        },
        metadata={_KEY: json.dumps(about, ensure_ascii=False, sort_keys=True).encode()},
    )
    try:
        with new_file(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_a_batch)
    except OSError as error:
        raise StoreError(
            f"the work so far could not be saved: {error.strerror or error}",
            where=path,
            fix="Free some space; the same command goes on from what was saved last.",
        ) from error


def read_scored(path: str | os.PathLike[str]) -> tuple[Scored, Any]:
    """Return all sets of a file, and what else it holds.

    Parameters
    ----------
    path
        A file of `write_scored`.
    """
    with _open(path) as reader:
        table = reader.read_all()
        about = json.loads(reader.schema.metadata[_KEY])
        return _scored(table), about


def read_about(path: str | os.PathLike[str]) -> Any:
    """Return what else a file of `write_scored` holds."""
    with _open(path) as reader:
        return json.loads(reader.schema.metadata[_KEY])


def batches(path: str | os.PathLike[str]) -> Iterator[Scored]:
    """Return the sets of a file a few thousand at a time; it stays open no longer than needed.

    Parameters
    ----------
    path
        A file of `write_scored`.
    """
    number, total = 0, 1
    while number < total:
        with _open(path) as reader:
            total = reader.num_record_batches
            if number == total:
                return
            found = _scored(pa.Table.from_batches([reader.get_batch(number)]))
        yield found
        number += 1


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        return pa.ipc.open_file(pa.OSFile(str(Path(path))))
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"the work that was saved here is damaged ({error})",
            where=path,
            fix=f"Remove the folder {Path(path).parent} and give the command again.",
        ) from error


def _scored(table: pa.Table) -> Scored:
    whole = table.combine_chunks()
    width = table.schema.field("genes").type.list_size
    if not whole.num_rows:
        flat = np.zeros(0, dtype=np.int64)
    else:
        flat = whole["genes"].chunk(0).flatten().to_numpy().astype(np.int64)
    return Scored(
        flat.reshape(-1, width),
        whole["score"].to_numpy().astype(np.float32),
        whole["spread"].to_numpy().astype(np.float32),
    )
