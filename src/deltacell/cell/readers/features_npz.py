"""Features in npz: the arrays ``genes`` and ``values``."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.features import feature_of
from deltacell.cell.readers.head import stem_of
from deltacell.cell.readers.names import OnUnresolved
from deltacell.counts import Source
from deltacell.errors import InputError

NAME = "features_npz"

_ARRAYS = ("genes", "values")


def recognise(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a zip that holds nothing but arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    return bool(members) and all(member.endswith(".npy") for member in members)


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
        Arrays ``genes`` [n], of strings, and ``values`` [n, width], of numbers. Pickled objects
        are refused.
    genes
        The cell's genes.
    name
        What to call the feature. None: the file's name without its ending.
    on_unknown
        What to do with a row whose gene is unknown or ambiguous: ``error`` or ``drop``.
    """
    path = Path(path)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is a single array and not an archive of them")
        with loaded as archive:
            held = list(archive.files)
            absent = [array for array in _ARRAYS if array not in held]
            if absent:
                raise InputError(
                    f"the arrays 'genes' and 'values' were expected; there is "
                    f"{', '.join(repr(array) for array in held) or 'none'}",
                    where=path,
                )
            names, values = (archive[array] for array in _ARRAYS)
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"cannot be read as npz: {str(error).splitlines()[0]}",
            where=path,
            fix="Save it with numpy.savez(file, genes=array of str, values=array of numbers).",
        ) from error
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise InputError(
            f"'genes' is an array of {names.dtype} with the shape {names.shape}, and strings with "
            "the shape (n,) were expected",
            where=path,
        )
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8")
    return feature_of(
        name or stem_of(path.name),
        names.tolist(),
        values,
        genes,
        on_unknown=on_unknown,
        path=path,
        reader=NAME,
    )
