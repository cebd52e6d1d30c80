"""SQL on a screen, with DuckDB, on its Arrow columns."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.errors import InputError
from deltacell.screen.columns import GENE_SCHEMA, ROW_SCHEMA
from deltacell.screen.screen import Screen

#: SQL sees the two tables and nothing else: no file, no extension, no variable of the program.
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


def wide_table(screen: Screen) -> pa.Table:
    """Return one row a genotype, its genes and their columns as lists.

    Columns: ``row``, ``kind``, ``genes`` (systematic names), ``roles``, ``perturbations``,
    ``alleles``, and those of `ROW_SCHEMA` but ``end``.
    """
    offsets = pa.array(screen.offsets, pa.int32())
    per_gene = _named(screen)
    lists = {
        plural: pa.ListArray.from_arrays(offsets, per_gene[name])
        for name, plural in _PLURALS.items()
    }
    return pa.table(
        {
            "row": pa.array(np.arange(len(screen)), pa.int64()),
            "kind": pa.array(screen.kind, pa.string()),
            **lists,
            **{name: _plain(screen.rows[name]) for name in ROW_SCHEMA.names if name != "end"},
        }
    )


def deleted_table(screen: Screen) -> pa.Table:
    """Return one row a deleted gene: the ``row`` of its genotype and the columns of the gene."""
    row = np.repeat(np.arange(len(screen)), np.diff(screen.offsets))
    return pa.table({"row": pa.array(row, pa.int64()), **_named(screen)})


def query(screen: Screen, sql: str) -> pl.DataFrame:
    """Run SQL over the tables ``screen`` and ``deleted``, and nothing else.

    Parameters
    ----------
    screen
        What to ask.
    sql
        One statement that returns rows. It can neither read nor write files.
    """
    tables = {"screen": wide_table(screen), "deleted": deleted_table(screen)}
    try:
        with duckdb.connect(":memory:", config=_CLOSED) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            relation = connection.sql(sql)
            if relation is None:
                raise InputError("the SQL returns no rows", fix="Ask with SELECT.")
            frame = pl.from_arrow(relation.to_arrow_table())
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"the result of the SQL is no table: {str(error).splitlines()[0]}",
            fix="Give every column a name of its own, and cast what is neither number nor text.",
        ) from error
    except duckdb.Error as error:
        there = "; ".join(f"{name} has {', '.join(t.column_names)}" for name, t in tables.items())
        raise InputError(f"the SQL did not run: {error}", fix=f"Columns: {there}.") from error
    assert isinstance(frame, pl.DataFrame)
    return frame


_PLURALS = {"gene": "genes", "role": "roles", "perturbation": "perturbations", "allele": "alleles"}


def _named(screen: Screen) -> dict[str, pa.Array]:
    """Return the columns of the deleted genes, with names for indices."""
    columns = {name: _plain(screen.deleted[name]) for name in GENE_SCHEMA.names}
    return columns | {"gene": pa.array(screen.genes.systematic, pa.string()).take(columns["gene"])}


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, its dictionary written out."""
    whole = column.combine_chunks()
    return whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole
