"""Embeddings: a vector for each gene or protein, as language models and other programs write them.

They are a matrix with names beside it (npy, npz, HDF5, h5ad), a vector under each name (npz, HDF5),
or a table whose first column has names and no header (text, Parquet). Nothing that is read is
executed: pickled arrays are refused.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import AnyArray, Floats
from deltacell.base.errors import InputError, MissingExtraError, need
from deltacell.cell.annotation import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.features import (
    MERGED,
    NO_VALUE,
    NoFeatureError,
    merged_rows,
    unnamed_index,
)
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    account_for_names,
    resolve_strains,
    stem_of,
)
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import MISSING, File, Sheet, is_number
from deltacell.storage.tables.unpack import ZIP_START

FEWEST_COLUMNS = 8  # of a table without a header of genes, so that no other table is taken for one
_NPY = b"\x93NUMPY"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NAMES_BESIDE = (".txt", ".names.txt", ".genes.txt", ".tsv", ".csv")
_MATRIX_NAMES = ("embeddings", "embedding", "x", "values", "matrix", "features")


class NamedVectors(NamedTuple):
    """A vector for each name."""

    names: list[str]
    values: Floats  # [names, width]


@dataclass(frozen=True)
class EmbeddingForm:
    """A file of embeddings, and how it is read."""

    path: Path
    vectors: Callable[[], NamedVectors]


def _find(file: File) -> EmbeddingForm | None:
    path = file.path
    start = _first_bytes(path)
    if start.startswith(_NPY):
        return EmbeddingForm(path, partial(_of_npy, path))
    if start.startswith(ZIP_START) and _is_npz(path):
        return EmbeddingForm(path, partial(_of_npz, path))
    if start.startswith(_HDF5):
        return EmbeddingForm(path, partial(_of_hdf5, path))
    return None


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    return bool(names) and all(name.endswith(".npy") for name in names)


def _find_table(file: File) -> EmbeddingForm | None:
    if file.is_workbook:
        return None
    for sheet in file.sheets:
        header_row = _header_of_embeddings(sheet)
        if header_row is not _NO_TABLE:
            return EmbeddingForm(file.path, partial(_of_table, sheet, header_row))
    return None


_NO_TABLE = -2  # the table is none of embeddings


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_HDF5))


def _header_of_embeddings(sheet: Sheet) -> int | None:
    """Return the row of the header of a table of embeddings, None without one, or `_NO_TABLE`."""
    rows = [row for row in sheet.rows if any(row)]
    width = max(map(len, rows), default=0)
    if width <= FEWEST_COLUMNS or len(rows) < 2:
        return _NO_TABLE
    if not all(map(_is_named_vector, rows[1:])):
        return _NO_TABLE
    if _is_named_vector(rows[0]) and len(rows[0]) == len(rows[1]):
        return None
    return 0 if unnamed_index(sheet.header(0)[0]) else _NO_TABLE


def _is_named_vector(row: Sequence[str]) -> bool:
    """Whether a row is a name and then numbers, which may be missing."""
    name, *fields = row
    present = [field for field in fields if field.lower() not in MISSING]
    return bool(name) and not is_number(name) and bool(present) and all(map(is_number, present))


def _of_table(sheet: Sheet, header_row: int | None) -> NamedVectors:
    table = sheet.below(header_row)
    label, *columns = table.frame.columns
    values = np.stack([table.numbers(name) for name in columns], axis=1)
    table.raise_if_bad()
    return NamedVectors(table.frame[label].to_list(), values.astype(np.float32))


def _of_npy(path: Path) -> NamedVectors:
    matrix = _matrix(_loaded(path), path)
    for suffix in _NAMES_BESIDE:
        beside = path.with_name(f"{path.stem}{suffix}")
        if beside.is_file():
            lines = beside.read_text("utf-8", "replace").splitlines()
            names = [line.replace("\t", ",").split(",")[0].strip() for line in lines]
            names = [name for name in names if name]
            if len(names) == len(matrix) + 1:
                names = names[1:]  # below a header
            return _checked(names, matrix, path)
    fix = f"Put the names, one per line in the order of the rows, into {path.stem}.txt beside it."
    raise InputError("the matrix has no names of genes", code="no-names", where=path, fix=fix)


def _of_npz(path: Path) -> NamedVectors:
    with _loaded(path) as archive:
        try:
            arrays = {name: archive[name] for name in archive.files}
        except ValueError as error:
            raise _pickled(path) from error
    return _of_arrays(arrays, path)


def _loaded(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _pickled(path) from error


def _pickled(path: Path) -> InputError:
    what = "the arrays cannot be read without executing code, or the file is damaged"
    fix = "Save numbers and names as plain arrays: names as text, np.array(names, dtype=str)."
    return InputError(what, code="pickled-array", where=path, fix=fix)


def _of_hdf5(path: Path) -> NamedVectors:
    need("h5py", "Reading HDF5", "anndata")
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "obs" in file and "X" in file:
                return _of_anndata(file, path)
            datasets = {n: item[()] for n, item in file.items() if isinstance(item, h5py.Dataset)}
    except (OSError, KeyError, RuntimeError) as error:
        what = f"the HDF5 file cannot be read: {error}"
        raise InputError(what, code="damaged-hdf5", where=path) from error
    return _of_arrays({name: np.asarray(values) for name, values in datasets.items()}, path)


def _of_anndata(file: Any, path: Path) -> NamedVectors:
    """Return ``X`` with the names of ``obs``; a sparse ``X`` is made dense."""
    obs = file["obs"]
    names = _texts(np.asarray(obs[obs.attrs.get("_index", "_index")]))
    x = file["X"]
    if hasattr(x, "shape"):
        return _checked(names, _matrix(np.asarray(x), path), path)
    import scipy.sparse as sp

    parts = (np.asarray(x["data"]), np.asarray(x["indices"]), np.asarray(x["indptr"]))
    kind = sp.csc_array if "csc" in str(x.attrs.get("encoding-type", "")) else sp.csr_array
    dense = kind(parts, shape=tuple(x.attrs["shape"])).toarray()
    return _checked(names, _matrix(dense, path), path)


def _of_arrays(arrays: Mapping[str, AnyArray], path: Path) -> NamedVectors:
    """Return a matrix with the only array of as many names, or the vectors under each name."""
    matrices = {n: a for n, a in arrays.items() if a.ndim == 2 and a.dtype.kind in "fiu"}
    vectors = {n: a for n, a in arrays.items() if a.ndim == 1 and a.dtype.kind == "f"}
    if not matrices and len(vectors) == len(arrays) > 1:
        widths = {len(vector) for vector in vectors.values()}
        if len(widths) == 1:
            return NamedVectors(list(vectors), np.stack(list(vectors.values())).astype(np.float32))
    named = [name for name in matrices if name.lower() in _MATRIX_NAMES] or list(matrices)
    if len(named) == 1:
        matrix = matrices[named[0]]
        texts = [a for a in arrays.values() if a.ndim == 1 and a.dtype.kind in "USO"]
        of_rows = [array for array in texts if len(array) == len(matrix)]
        if len(of_rows) == 1:
            return _checked(_texts(of_rows[0]), _matrix(matrix, path), path)
    what = "expected a matrix and the names of its rows, or a vector under each name; found "
    what += ", ".join(f"{name} {array.shape}" for name, array in list(arrays.items())[:5])
    raise InputError(what or "no array", code="no-names", where=path)


def _texts(names: AnyArray) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]


def _matrix(array: Any, path: Path) -> Floats:
    values = np.asarray(array)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        what = f"expected a matrix of numbers [genes, width], got {values.dtype} {values.shape}"
        raise InputError(what, code="not-a-matrix", where=path)
    return values.astype(np.float32)


def _checked(names: list[str], values: Floats, path: Path) -> NamedVectors:
    if len(names) != len(values):
        what = f"there are {len(names):,} names and {len(values):,} rows"
        raise InputError(what, code="names-and-rows", where=path)
    return NamedVectors(names, values)


def _vectors(form: EmbeddingForm) -> NamedVectors:
    try:
        return form.vectors()
    except (InputError, MissingExtraError):
        raise
    # A damaged file may raise almost anything.
    except Exception as error:
        what = f"the embeddings cannot be read ({type(error).__name__}: {str(error)[:200]})"
        fix = "Write the file again."
        raise InputError(what, code="damaged-embeddings", where=form.path, fix=fix) from error


def _read(
    form: EmbeddingForm,
    genes: Genes,
    on_unknown: OnUnresolved = "drop",
) -> tuple[Feature, Source]:
    """Make a feature of the vectors whose names are genes, and account for every name."""
    path = form.path
    vectors = _vectors(form)
    names = pl.Series("name", vectors.names, dtype=pl.String)
    values = np.where(np.isfinite(vectors.values), vectors.values, np.nan).astype(np.float32)
    index = resolve_strains(genes, names)
    not_found = account_for_names(genes, names, index, on_unknown, path)
    is_known = index >= 0
    if not is_known.any():
        message = f"none of its {len(names):,} rows names a gene of the cell"
        raise NoFeatureError(message, code="no-gene-of-the-cell", where=path)
    has_value = ~np.isnan(values).all(axis=1)
    kept = np.flatnonzero(is_known & has_value)
    matrix = merged_rows(values[kept], index[kept], len(genes))
    feature = Feature(stem_of(path.name), matrix)
    n_genes = int(feature.known.sum())
    dropped = {
        **not_found.dropped,
        NO_VALUE: int(is_known.sum()) - len(kept),
        MERGED: len(kept) - n_genes,
    }
    counts = Counts(len(names), n_genes, dropped)
    notes: dict[str, int | str] = {"width": feature.width, "genes": n_genes, **not_found.notes}
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return feature, Source(path.name, sha256, reader.name, counts, feature.name, notes)


reader = Reader("embeddings", "feature", _find, _read)
table_reader = Reader("embeddings_table", "feature", _find_table, _read)
