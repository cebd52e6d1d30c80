"""A screen for other libraries and from them: pandas and AnnData."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from deltacell.cell import Cell
from deltacell.cell.tables import frame_of
from deltacell.errors import InputError, MissingExtraError
from deltacell.screen.columns import ROW_SCHEMA
from deltacell.screen.query import wide_table
from deltacell.screen.screen import Screen

if TYPE_CHECKING:
    import anndata
    import pandas as pd


def to_pandas(screen: Screen) -> pd.DataFrame:
    """Return one row a genotype, its genes and their columns as lists.

    Parameters
    ----------
    screen
        What to convert.
    """
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
    """Return the screen of a data frame; see `Screen.from_pandas`.

    The frame takes the way of a file, so that columns and names mean the same in both.
    """
    from deltacell.screen.readers import tables

    table = frame_of(frame, study)
    absent = [here for here in columns.values() if here not in table.columns]
    if absent:
        raise InputError(
            f"the table has no column '{absent[0]}'; it has {', '.join(table.columns)}"
        )
    table = table.rename({here: name for name, here in columns.items()}).fill_nan(None)
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    if lists:
        # Of what `to_pandas` gives, the lists beside the genes are not read from a table.
        table = table.drop([name for name in lists if name != "genes"]).with_columns(
            pl.col(name).cast(pl.List(pl.String)).list.join(";")
            for name in lists
            if name == "genes"
        )
        table = table.select([name for name in ("genes", *_READ_BACK) if name in table.columns])
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{study}.tsv"
        table.write_csv(path, separator="\t", null_value="NA")
        try:
            [written] = tables.read(path, study=study, phenotype=phenotype)
            return written.on(cell.genes, on_unknown)
        except InputError as error:
            # The first line of the file is the header, and people count rows from 0.
            row = None if error.line is None else error.line - 2
            place = f"row {row} of the table: " if row is not None and row >= 0 else ""
            raise type(error)(f"{place}{error.what}", fix=error.fix) from error


_READ_BACK = ("score", "p_value", "standard_deviation")


def to_anndata(screen: Screen) -> anndata.AnnData:
    """Return an AnnData with a genotype an observation and a gene of the cell a variable.

    ``X`` [genotypes, genes] is sparse, 1 where a genotype deletes a gene. ``obs`` has the columns
    of `ROW_SCHEMA` but ``end``, and ``kind``; ``var`` the standard names.

    Parameters
    ----------
    screen
        What to convert.
    """
    need("anndata", "An AnnData", "anndata")
    import anndata
    import pandas as pd
    from scipy import sparse

    rows = screen.rows.select([name for name in ROW_SCHEMA.names if name != "end"])
    obs = rows.to_pandas()
    obs["kind"] = pd.Categorical(screen.kind)
    obs.index = obs.index.astype(str)
    var = pd.DataFrame(
        {"standard": [name or "" for name in screen.genes.standard]},
        index=list(screen.genes.systematic),
    )
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
