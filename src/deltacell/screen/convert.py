"""A screen for other programs and from them: SQL (DuckDB), pandas, AnnData."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.cell import Cell
from deltacell.cell.tables import frame_of
from deltacell.errors import InputError, MissingExtraError
from deltacell.screen.columns import GENE_SCHEMA, ROW_SCHEMA
from deltacell.screen.screen import Screen

if TYPE_CHECKING:
    import anndata
    import pandas as pd

#: SQL sees the two tables and nothing else: no file, no extension, no variable of the program.
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
_ROW_COLUMNS = [name for name in ROW_SCHEMA.names if name != "end"]
_READ_BACK = ("genes", "score", "p_value", "standard_deviation")


def wide_table(screen: Screen) -> pa.Table:
    """Return one row per genotype, its genes and their columns as lists.

    Columns: ``row``, ``kind``, ``genes`` (systematic names), ``roles``, ``perturbations``,
    ``alleles``, and those of `ROW_SCHEMA` but ``end``.
    """
    offsets = pa.array(screen.offsets, pa.int32())
    return pa.table(
        {
            "row": pa.array(np.arange(len(screen)), pa.int64()),
            "kind": pa.array(screen.kind, pa.string()),
            **{
                f"{name}s": pa.ListArray.from_arrays(offsets, values)
                for name, values in _gene_columns(screen).items()
            },
            **{name: _plain(screen.rows[name]) for name in _ROW_COLUMNS},
        }
    )


def query(screen: Screen, sql: str) -> pl.DataFrame:
    """Run SQL over the tables ``screen`` and ``deleted``; it can neither read nor write files."""
    owner = np.repeat(np.arange(len(screen)), np.diff(screen.offsets))
    deleted = pa.table({"row": pa.array(owner, pa.int64()), **_gene_columns(screen)})
    tables = {"screen": wide_table(screen), "deleted": deleted}
    try:
        with duckdb.connect(":memory:", config=_CLOSED) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            relation = connection.sql(sql)
            if relation is None:
                raise InputError("the SQL returns no rows", code="sql-no-rows", fix="Use SELECT.")
            frame = pl.from_arrow(relation.to_arrow_table())
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"the result of the SQL is not a table: {str(error).splitlines()[0]}",
            code="sql-result",
            fix="Give every column its own name, and cast what is neither a number nor text.",
        ) from error
    except duckdb.Error as error:
        there = "; ".join(f"{name} has {', '.join(t.column_names)}" for name, t in tables.items())
        raise InputError(
            f"the SQL did not run: {error}", code="sql-error", fix=f"Columns: {there}."
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_pandas(screen: Screen) -> pd.DataFrame:
    """See `Screen.to_pandas`."""
    need("pandas", "A pandas table", "pandas")
    import pandas as pd

    table = wide_table(screen)
    return pd.DataFrame(
        {
            field.name: table[field.name].to_pylist()
            if pa.types.is_list(field.type)
            else table[field.name].to_pandas()
            for field in table.schema
        }
    )


def from_frame(
    frame: Any,
    cell: Cell,
    columns: Mapping[str, str],
    study: str,
    phenotype: str | None,
    on_unknown: Literal["error", "drop"],
) -> Screen:
    """See `Screen.from_pandas`; the frame goes through a file, so that names mean the same."""
    from deltacell.screen.readers import tables

    table = frame_of(frame, study)
    absent = [here for here in columns.values() if here not in table.columns]
    if absent:
        raise InputError(
            f"the table has no column '{absent[0]}'; it has {', '.join(table.columns)}",
            code="missing-column",
        )
    table = table.rename({here: name for name, here in columns.items()}).fill_nan(None)
    if any(isinstance(kind, pl.List) for kind in table.dtypes):
        # A table of `to_pandas`, of which other lists than the genes are not read back.
        table = table.select(name for name in _READ_BACK if name in table.columns).with_columns(
            pl.col("genes").cast(pl.List(pl.String)).list.join(";")
        )
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{study}.tsv"
        table.write_csv(path, separator="\t", null_value="NA")
        try:
            [written] = tables.read(path, study=study, phenotype=phenotype)
            return written.on(cell.genes, on_unknown)
        except InputError as error:
            # The first line of the file is the header, and rows are counted from 0.
            row = -1 if error.line is None else error.line - 2
            place = f"row {row} of the table: " if row >= 0 else ""
            raise type(error)(
                f"{place}{error.what}", code=error.code, fix=error.fix, **error.fields
            ) from error


def to_anndata(screen: Screen) -> anndata.AnnData:
    """Return an AnnData of genotypes (observations) and genes of the cell (variables).

    ``X`` [genotypes, genes] is sparse, 1 where a genotype deletes a gene. ``obs`` has the columns
    of `ROW_SCHEMA` but ``end``, and ``kind``; ``var`` the standard names.
    """
    need("anndata", "An AnnData", "anndata")
    import anndata
    import pandas as pd
    from scipy import sparse

    obs = screen.rows.select(_ROW_COLUMNS).to_pandas()
    obs["kind"] = pd.Categorical(screen.kind)
    obs.index = obs.index.astype(str)
    standard = [name or "" for name in screen.genes.standard]
    var = pd.DataFrame({"standard": standard}, index=list(screen.genes.systematic))
    genes = screen.genotypes.genes.numpy()
    deleted = sparse.csr_matrix(
        (np.ones(len(genes), dtype=np.float32), genes, screen.offsets),
        shape=(len(screen), len(screen.genes)),
    )
    deleted.sort_indices()
    return anndata.AnnData(deleted, obs=obs, var=var)


def need(module: str, purpose: str, extra: str) -> None:
    """Raise where an optional module is not installed."""
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(purpose, extra)


def _gene_columns(screen: Screen) -> dict[str, pa.Array]:
    """Return the columns of the deleted genes, with names for indices."""
    columns = {name: _plain(screen.deleted[name]) for name in GENE_SCHEMA.names}
    return columns | {"gene": pa.array(screen.genes.systematic, pa.string()).take(columns["gene"])}


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, its dictionary written out."""
    whole = column.combine_chunks()
    return whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole
