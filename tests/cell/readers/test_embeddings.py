"""Embeddings of genes in every file that programs write them to."""

import h5py
import numpy as np
import polars as pl
import pytest

from deltacell.cell import Genes
from deltacell.cell.readers.embeddings import reader
from deltacell.data.import_folder import import_folder

NAMES = ["BRCA1", "HLA-A", "MAPK1", "nobody", "TP53"]
VALUES = np.random.default_rng(0).normal(0, 1, (5, 12)).astype(np.float32)
GENES = "systematic name,standard name,aliases\n" + "".join(
    f"{name},,alias{i}\n" for i, name in enumerate(NAMES) if name != "nobody"
)


def npy(path):
    np.save(path / "esm.npy", VALUES)
    (path / "esm.txt").write_text("\n".join(NAMES) + "\n")


def npz(path):
    np.savez(path / "esm.npz", embeddings=VALUES, genes=np.array(NAMES))


def npz_of_vectors(path):
    np.savez(path / "esm.npz", **dict(zip(NAMES, VALUES, strict=True)))


def hdf5_of_vectors(path):
    with h5py.File(path / "esm.h5", "w") as file:
        for name, vector in zip(NAMES, VALUES, strict=True):
            file[name] = vector


def hdf5(path):
    with h5py.File(path / "esm.hdf5", "w") as file:
        file["X"] = VALUES
        file["names"] = NAMES


def h5ad(path):
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    anndata.AnnData(VALUES, obs=pd.DataFrame(index=NAMES)).write_h5ad(path / "esm.h5ad")


def csv(path):
    rows = [",".join([name, *map(repr, map(float, row))]) for name, row in zip(NAMES, VALUES)]  # noqa: B905
    (path / "esm.csv").write_text("\n".join(rows) + "\n")


def csv_with_an_index(path):
    csv(path)
    header = ",".join(["", *map(str, range(VALUES.shape[1]))])
    (path / "esm.csv").write_text(f"{header}\n{(path / 'esm.csv').read_text()}")


def parquet(path):
    columns = {str(i): column for i, column in enumerate(VALUES.T)}
    pl.DataFrame({**columns, "__index_level_0__": NAMES}).select(
        "__index_level_0__", *columns
    ).write_parquet(path / "esm.parquet")


WAYS = [npy, npz, npz_of_vectors, hdf5, hdf5_of_vectors, h5ad, csv, csv_with_an_index, parquet]


@pytest.mark.parametrize("write_to", WAYS)
def test_a_vector_of_each_gene_is_a_feature(tmp_path, write_to):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "genes.csv").write_text(GENES)
    write_to(folder)
    result = import_folder(folder)
    [feature] = result.cell.features.values()
    assert feature.width == 12
    for name, vector in zip(NAMES, VALUES, strict=True):
        if name != "nobody":
            values = feature.values[result.cell.genes.index(name)]
            np.testing.assert_allclose(values, vector, rtol=1e-6)
    source = next(s for s in result.cell.sources if s.into == feature.name)
    assert (source.counts.read, source.counts.kept) == (5, 4)


def test_pickled_arrays_are_refused_and_never_loaded(tmp_path, refused):
    class Harmful:
        def __reduce__(self):
            return (print, ("executed",))

    path = tmp_path / "esm.npy"
    np.save(path, np.array([Harmful()], dtype=object), allow_pickle=True)
    refused("pickled-array", reader.read, path, genes=Genes(["BRCA1"]))
    np.savez(tmp_path / "esm.npz", X=VALUES, names=np.array([Harmful()], dtype=object))
    refused("pickled-array", reader.read, tmp_path / "esm.npz", genes=Genes(["BRCA1"]))


def test_what_has_no_names_says_where_to_put_them(tmp_path, refused):
    np.save(tmp_path / "esm.npy", VALUES)
    error = refused("no-names", reader.read, tmp_path / "esm.npy", genes=Genes(["BRCA1"]))
    assert "esm.txt" in error.fix
    (tmp_path / "esm.txt").write_text("BRCA1\n")
    refused("names-and-rows", reader.read, tmp_path / "esm.npy", genes=Genes(["BRCA1"]))
