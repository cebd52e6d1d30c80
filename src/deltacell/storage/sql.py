"""SQL over tables in memory, which has access to nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from deltacell.base.errors import InputError, need

#: SQL has access to the given tables only: to no file, extension or variable of the program.
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


def run_sql(tables: Mapping[str, pa.Table], sql: str) -> pl.DataFrame:
    """Run SQL on tables by name with DuckDB; raise if it fails or returns nothing."""
    need("duckdb", "SQL", "sql")
    import duckdb

    try:
        with duckdb.connect(":memory:", config=_CLOSED) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            relation = connection.sql(sql)
            if relation is None:
                raise InputError("not a SELECT statement", code="sql-error")
            return pl.DataFrame(relation.to_arrow_table())
    except (duckdb.Error, pl.exceptions.PolarsError) as error:
        columns = [f"{name} has {', '.join(t.column_names)}" for name, t in tables.items()]
        fix = f"Columns: {'; '.join(columns)}. The columns of the result need distinct names."
        raise InputError(f"the SQL failed: {error}", code="sql-error", fix=fix) from error
