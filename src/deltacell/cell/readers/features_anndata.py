"""Features in AnnData: the matrix X, whose genes are its observations or its variables."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.features import feature_of
from deltacell.cell.readers.head import stem_of
from deltacell.cell.readers.names import OnUnresolved
from deltacell.counts import Source
from deltacell.errors import InputError, MissingExtraError

NAME = "features_anndata"

_HDF5 = b"\x89HDF\r\n\x1a\n"


def recognise(path: str | os.PathLike[str]) -> bool:
    """Whether the file is HDF5 and called ``.h5ad``, which its first bytes cannot tell."""
    with Path(path).open("rb") as file:
        return file.read(len(_HDF5)) == _HDF5 and Path(path).suffix.lower() == ".h5ad"


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
        AnnData as h5ad. Whichever of its observations and variables has more names that are genes
        of the cell is taken for the genes; the other is what is known of them.
    genes
        The cell's genes.
    name
        What to call the feature. None: the file's name without its ending.
    on_unknown
        What to do with a gene that is unknown or ambiguous: ``error`` or ``drop``.
    """
    try:
        import anndata
    except ImportError as error:
        raise MissingExtraError("Reading AnnData files", "anndata") from error
    path = Path(path)
    try:
        data = anndata.read_h5ad(path)
    except Exception as error:
        # anndata lets through whatever h5py and its own versions of the format raise.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot be read as AnnData: {reason}", where=path) from error
    if data.X is None:
        raise InputError("the file has no matrix X", where=path)
    matrix = data.X.toarray() if hasattr(data.X, "toarray") else np.asarray(data.X)
    observations, variables = data.obs_names.tolist(), data.var_names.tolist()
    n_observations = int(genes.resolve(observations).found.sum())
    n_variables = int(genes.resolve(variables).found.sum())
    if n_observations == n_variables:
        raise InputError(
            "cannot tell whether the genes are the observations or the variables: of each, "
            f"{n_observations} are genes of the cell",
            where=path,
            fix="Name either of them after genes: systematic names, standard names or aliases.",
        )
    by_gene = n_observations > n_variables
    return feature_of(
        name or stem_of(path.name),
        observations if by_gene else variables,
        matrix if by_gene else matrix.T,
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=NAME,
        columns=_distinct(variables if by_gene else observations),
    )


def _distinct(names: list[str]) -> list[str]:
    """Return the names, or none where two columns share one."""
    return names if len(set(names)) == len(names) else []
