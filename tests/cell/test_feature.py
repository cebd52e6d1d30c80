from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deltacell import store
from deltacell.cell import Cell, Feature
from deltacell.errors import InputError

NAN = float("nan")


@pytest.fixture
def feature():
    return Feature("expression", [[1, NAN], [NAN, NAN], [5, 0]], ("heat", "salt"))


def test_a_gene_is_known_by_one_value(feature):
    assert feature.known.tolist() == [True, False, True]
    assert feature.missing == 0.25
    assert repr(feature) == "Feature('expression', width 2, known for 2)"


def test_columns_are_numbered_where_they_have_no_name():
    feature = Feature.of_all("x", np.array([[1, 2], [3, 4]], dtype=np.float64, order="F"))
    assert feature.columns == ("1", "2")
    assert feature.values.dtype == np.float32


def test_taking_genes_takes_their_rows(feature):
    taken = feature.take(np.array([2, 1]))
    assert np.array_equal(taken.values, [[5, 0], [NAN, NAN]], equal_nan=True)
    assert taken.columns == feature.columns


def test_equal_means_name_columns_values_and_what_is_missing(feature):
    assert feature.equals(Feature("expression", feature.values.copy(), ("heat", "salt")))
    assert not feature.equals(feature.renamed("other"))
    assert not feature.equals(Feature("expression", feature.values))
    assert not feature.equals(Feature("expression", feature.values + 1, feature.columns))
    assert not feature.equals(Feature("expression", np.nan_to_num(feature.values), feature.columns))


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(width=32, allow_infinity=False),
    )
)
def test_saving_and_loading_is_identity_and_a_missing_value_is_no_zero(values):
    feature = Feature("f", values, tuple(f"column {i}" for i in range(values.shape[1])))
    loaded = Feature.from_arrow(feature.to_arrow(), feature.name, feature.width)
    assert loaded.equals(feature)
    assert np.array_equal(np.isnan(loaded.values), np.isnan(values))


def test_the_earlier_form_on_disk_is_read(tmp_path, feature):
    cell = Cell(["A", "B", "C"], [], features=[feature])
    parts = {n: t for n, t in cell._parts().items() if not n.startswith("feature-")}
    flat = pa.array([1, 2, 0, 0, 5, 0], pa.float32())
    parts["feature-000"] = pa.table(
        {"values": pa.FixedSizeListArray.from_arrays(flat, 2), "known": [True, False, True]}
    )
    meta = {"counts": [], "sources": [], "synthetic": None}
    store.write(tmp_path / "cell", "cell", parts, meta)
    loaded = Cell.load(tmp_path / "cell").features["expression"]
    assert np.array_equal(loaded.values, [[1, 2], [NAN, NAN], [5, 0]], equal_nan=True)
    assert loaded.columns == ("1", "2")


@pytest.mark.parametrize(
    ("values", "columns", "code"),
    [
        ([1.0, 2.0], (), "bad-shape"),
        (np.zeros((2, 0)), (), "bad-shape"),
        (np.zeros((2, 2, 2)), (), "bad-shape"),
        (3.0, (), "bad-shape"),
        (np.zeros((2, 2)), ("a",), "bad-shape"),
        (np.zeros((2, 2)), ("a", "a"), "duplicate-column"),
        ([[float("inf")], [1.0]], (), "not-finite"),
    ],
)
def test_what_is_no_feature_is_refused(values, columns, code):
    with pytest.raises(InputError) as caught:
        Feature.of_all("f", values, columns)
    assert caught.value.code == code
