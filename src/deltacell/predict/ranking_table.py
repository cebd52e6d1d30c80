"""A ranking as a plain table, for spreadsheets and other programs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from deltacell.errors import InputError
from deltacell.files import new_file

_ROWS_AT_A_TIME = 50_000
_TEXTS = ("genes", "names", "relations", "pathways", "complexes")
# A spreadsheet would take a text that begins so for a formula, and run it.
_FORMULA = r"^([=+@\-\t\r])"


def write_table(ranking: Path, path: Path) -> None:
    """Write all rows of a ranking as a table, whole or not at all.

    The columns are those of the Parquet file, without ``links``; several genes, relations,
    pathways or complexes are one text with ``; `` between them. A text that a spreadsheet would
    take for a formula has an apostrophe before it.

    Parameters
    ----------
    ranking
        Its Parquet file.
    path
        The table; with tabs where its name ends in ``.tsv``, with commas otherwise.
    """
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    texts = [
        pl.col(name).list.join("; ").str.replace(_FORMULA, "'$1").alias(name) for name in _TEXTS
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            pq.ParquetFile(ranking) as file,
            new_file(path) as temporary,
            temporary.open("wb") as to,
        ):
            columns = [name for name in file.schema_arrow.names if name != "links"]
            to.write((separator.join(columns) + "\n").encode())
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=columns):
                rows = pl.DataFrame(batch).with_columns(texts)
                to.write(rows.write_csv(include_header=False, separator=separator).encode())
    except OSError as error:
        raise InputError(
            f"the table could not be written: {error.strerror or error}", where=path
        ) from error
