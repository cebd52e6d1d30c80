from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell.readers import features_npz, recognise
from deltacell.cell.readers.features import MERGED
from deltacell.errors import GeneNameError, InputError


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        path = tmp_path / "protein.npz"
        np.savez_compressed(path, **arrays)
        return path

    return write


@pytest.mark.parametrize("kind", ["U", "S"])
def test_genes_and_values(kind, npz, genes):
    path = npz(genes=np.array(["HO", "vps8"], dtype=kind), values=np.arange(6).reshape(2, 3))
    assert recognise(path) == "features_npz"
    feature, source = features_npz.read(path, genes)
    assert feature.name == "protein"
    assert feature.values[[3, 1]].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert feature.known.tolist() == [False, True, False, True, False]
    assert (source.reader, source.counts.kept, source.notes["width"]) == ("features_npz", 2, 3)


def test_one_number_a_gene(npz, genes):
    feature, _ = features_npz.read(npz(genes=np.array(["HO"]), values=np.array([2.0])), genes)
    assert feature.values.shape == (5, 1)


def test_missing_values_stay_missing_and_rows_of_a_gene_are_merged(npz, genes):
    names = np.array(["HO", "ho", "VPS8"])
    feature, source = features_npz.read(
        npz(genes=names, values=np.array([[1, np.nan], [3, np.nan], [np.nan, 0]])), genes
    )
    assert np.array_equal(feature.values[[3, 1]], [[2, np.nan], [np.nan, 0]], equal_nan=True)
    assert source.counts.dropped == {MERGED: 1}
    assert "YDL227C (HO) in rows 1, 2" in source.notes["genes_with_several_rows"]


def test_unknown_gene(npz, genes):
    path = npz(genes=np.array(["HO", "NOPE"]), values=np.ones(2))
    assert features_npz.read(path, genes)[1].counts.dropped == {"unknown gene": 1}
    with pytest.raises(GeneNameError, match="row 2"):
        features_npz.read(path, genes, on_unknown="error")


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"genes": np.array(["HO"])}, "'genes' and 'values' were expected; there is 'genes'"),
        ({"genes": np.array(["HO"]), "values": np.ones((2, 1))}, r"shape \(2, 1\)"),
        ({"genes": np.array(["HO"]), "values": np.ones((1, 1, 1))}, r"shape \(1, 1, 1\)"),
        ({"genes": np.array(["HO"]), "values": np.ones((1, 0))}, r"shape \(1, 0\)"),
        ({"genes": np.array([1]), "values": np.ones(1)}, "strings"),
        ({"genes": np.array(["HO"]), "values": np.array(["x"])}, "not numbers"),
        ({"genes": np.array(["HO"]), "values": np.array([1j])}, "not numbers"),
        ({"genes": np.array(["HO"]), "values": np.array([np.inf])}, "not a finite number"),
        ({"genes": np.array(["HO"], dtype=object), "values": np.ones(1)}, "allow_pickle"),
    ],
)
def test_bad_arrays(arrays, what, npz, genes):
    path = npz(**arrays)
    with pytest.raises(InputError, match=what) as caught:
        features_npz.read(path, genes)
    assert caught.value.where == path


def test_damaged_file(npz, genes):
    path = npz(genes=np.array(["HO"]), values=np.ones(1))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be read as npz"):
        features_npz.read(path, genes)


def test_single_array_is_not_an_archive(tmp_path, genes):
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(InputError, match="cannot be read as npz"):
        features_npz.read(tmp_path / "a.npy", genes)
