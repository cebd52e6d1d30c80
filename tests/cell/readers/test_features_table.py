from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.cell.readers import features_parquet, recognise
from deltacell.errors import GeneNameError, InputError


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        path = tmp_path / "expression.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    return write


def test_columns_of_numbers(parquet, genes):
    path = parquet(x=[1, 2], gene=["HO", "yal001c"], y=pa.array([0.5, 0.25], pa.float32()))
    assert recognise(path) == "features_parquet"
    feature, source = features_parquet.read(path, genes)
    assert (feature.name, feature.width) == ("expression", 2)
    assert feature.values.tolist() == [[2, 0.25], [0, 0], [0, 0], [1, 0.5], [0, 0]]
    assert feature.known.tolist() == [True, False, False, True, False]
    assert (source.into, source.reader) == ("expression", "features_parquet")
    assert (source.counts.read, source.counts.kept) == (2, 2)
    assert len(source.sha256) == 64


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 3)])
def test_a_column_of_lists(kind, parquet, genes):
    path = parquet(gene=["HO", "TFC3"], embedding=pa.array([[1, 2, 3], [4, 5, 6]], kind))
    assert recognise(path) == "features_parquet"
    feature, _ = features_parquet.read(path, genes, name="protein")
    assert feature.name == "protein"
    assert feature.values[[3, 0]].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_names_as_categories_and_the_index_of_pandas(parquet, genes):
    path = parquet(
        gene=pa.array(["HO", "TFC3"]).dictionary_encode(), x=[1.0, 2.0], __index_level_0__=[7, 8]
    )
    assert features_parquet.read(path, genes)[0].width == 1


def test_unknown_gene_under_each_policy(parquet, genes):
    path = parquet(gene=["HO", "NOPE", "BOTH"], x=[1.0, 2.0, 3.0])
    _, source = features_parquet.read(path, genes)
    assert source.counts.read == 3
    assert source.counts.dropped == {"unknown gene": 1, "ambiguous gene name": 1}
    with pytest.raises(GeneNameError, match=r"'NOPE' \(row 2\)") as caught:
        features_parquet.read(path, genes, on_unknown="error")
    assert caught.value.where == path
    extended = genes.extended(["NOPE"])
    assert features_parquet.read(path, extended)[1].counts.kept == 2


def test_gene_twice(parquet, genes):
    path = parquet(gene=["TFC3", "HO", "YAL001C"], x=[1.0, 2.0, 3.0])
    with pytest.raises(
        InputError, match="stands twice: as 'TFC3' in row 1 and as 'YAL001C' in row 3"
    ):
        features_parquet.read(path, genes)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"gene": ["HO", "TFC3"], "x": [1.0, np.nan]}, r"row 2 \('TFC3'\), value 1: nan"),
        ({"gene": ["HO", "TFC3"], "x": pa.array([1, None])}, r"row 2 \('TFC3'\)"),
        ({"gene": ["HO", "TFC3"], "x": [1.0, 1e300]}, r"row 2 \('TFC3'\)"),
        ({"gene": ["HO", None], "x": [1.0, 2.0]}, "row 2 has no gene name"),
        ({"gene": pa.array([], pa.string()), "x": pa.array([], pa.float32())}, "no genes"),
        ({"gene": ["HO"], "other": ["x"], "x": [1.0]}, "exactly one column of strings"),
        ({"x": [1.0]}, "exactly one column of strings"),
        ({"gene": ["HO"]}, "columns of numbers"),
        ({"gene": ["HO"], "x": [[1.0]], "y": [1.0]}, "one column of lists"),
        ({"gene": ["HO"], "x": [["a"]]}, "'x' .list"),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], [1.0]]}, "row 2: lists of equal length"),
        ({"gene": ["HO", "TFC3"], "x": [[1.0, 2.0], None]}, "row 2: lists of equal length"),
        ({"gene": ["HO", "TFC3"], "x": [None, [1.0]]}, "row 1: lists of equal length"),
    ],
)
def test_bad_tables(columns, what, parquet, genes):
    path = parquet(**columns)
    with pytest.raises(InputError, match=what) as caught:
        features_parquet.read(path, genes)
    assert caught.value.where == path


def test_damaged_file(parquet, genes):
    path = parquet(gene=["HO"], x=[1.0])
    path.write_bytes(path.read_bytes()[:-20])
    assert recognise(path) is None
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        features_parquet.read(path, genes)


def test_other_tables_are_not_recognised(parquet):
    assert recognise(parquet(a=["x"], b=["y"], score=[1.0])) is None
