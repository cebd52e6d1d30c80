"""A screen for other libraries: pandas and AnnData."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltacell.errors import MissingExtraError
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
    _need("pandas", "A pandas table", "pandas")
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


def to_anndata(screen: Screen) -> anndata.AnnData:
    """Return an AnnData with a genotype an observation and a gene of the cell a variable.

    ``X`` [genotypes, genes] is sparse, 1 where a genotype deletes a gene. ``obs`` has the columns
    of `ROW_SCHEMA` but ``end``, and ``kind``; ``var`` the standard names.

    Parameters
    ----------
    screen
        What to convert.
    """
    _need("anndata", "An AnnData", "anndata")
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


def _need(module: str, purpose: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(purpose, extra)
