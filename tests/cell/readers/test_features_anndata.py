from __future__ import annotations

import sys

import numpy as np
import pytest

from deltacell.cell.readers import features_anndata, recognise
from deltacell.errors import InputError, MissingExtraError

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")
sparse = pytest.importorskip("scipy.sparse")


@pytest.fixture
def h5ad(tmp_path):
    def write(matrix, observations, variables):
        path = tmp_path / "expression.h5ad"
        data = anndata.AnnData(
            matrix, obs=pd.DataFrame(index=observations), var=pd.DataFrame(index=variables)
        )
        data.write_h5ad(path)
        return path

    return write


MATRIX = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_genes_as_observations_or_variables(form, h5ad, genes):
    rows, columns = ["HO", "TFC3"], ["control", "heat", "salt"]
    for matrix, observations, variables in (
        (form(MATRIX), rows, columns),
        (form(MATRIX.T.copy()), columns, rows),
    ):
        path = h5ad(matrix, observations, variables)
        assert recognise(path) == "features_anndata"
        feature, source = features_anndata.read(path, genes)
        assert feature.name == "expression"
        assert feature.values[[3, 0]].tolist() == MATRIX.tolist()
        assert source.counts.read == source.counts.kept == 2


def test_neither_is_genes(h5ad, genes):
    path = h5ad(MATRIX, ["a", "b"], ["x", "y", "z"])
    with pytest.raises(InputError, match="observations or the variables") as caught:
        features_anndata.read(path, genes)
    assert caught.value.where == path


def test_columns_have_names_and_rows_of_a_gene_are_merged(h5ad, genes):
    feature, _ = features_anndata.read(h5ad(MATRIX, ["HO", "ho"], ["x", "y", "z"]), genes)
    assert feature.columns == ("x", "y", "z")
    assert feature.values[3].tolist() == [2.5, 3.5, 4.5]


def test_no_matrix(h5ad, genes):
    with pytest.raises(InputError, match="no matrix"):
        features_anndata.read(h5ad(None, ["HO"], ["x"]), genes)


def test_damaged_file(h5ad, genes):
    path = h5ad(MATRIX, ["HO", "TFC3"], ["x", "y", "z"])
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match="cannot be read as AnnData"):
        features_anndata.read(path, genes)


def test_without_the_extra(tmp_path, genes, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(MissingExtraError, match="anndata"):
        features_anndata.read(tmp_path / "x.h5ad", genes)
