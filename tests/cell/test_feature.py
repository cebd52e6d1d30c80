from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Feature
from deltacell.errors import InputError


@pytest.fixture
def feature():
    values = np.array([[1, 2], [0, 0], [5, 6]], dtype=np.float32)
    return Feature("expression", values, np.array([True, False, True]))


def test_saving_and_loading_is_identity(feature):
    assert Feature.from_arrow(feature.to_arrow(), feature.describe()).equals(feature)


def test_numbers_of_another_type_become_single_precision():
    feature = Feature.of_all("x", [[1, 2], [3, 4]])
    other = Feature("x", np.array([[1, 2], [3, 4]], dtype=np.float64, order="F"), [1, 1])
    assert feature.values.dtype == np.float32
    assert feature.equals(other)
    assert Feature.from_arrow(other.to_arrow(), other.describe()).equals(other)


def test_taking_genes_takes_their_rows(feature):
    taken = feature.take(np.array([2, 1]))
    assert taken.values.tolist() == [[5, 6], [0, 0]]
    assert taken.known.tolist() == [True, False]
    assert repr(taken) == "Feature('expression', width 2, known for 1)"


def test_equal_means_name_values_and_what_is_known(feature):
    assert not feature.equals(feature.renamed("other"))
    assert not feature.equals(Feature.of_all("expression", feature.values))
    assert not feature.equals(Feature("expression", feature.values + 1, feature.known))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0], r"shape \(2,\), and \(2, width\)"),
        (np.zeros((2, 0)), r"shape \(2, 0\)"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (3.0, "shape"),
        ([[1.0], [float("nan")]], "row 1 holds a number that is not finite"),
        ([[float("inf")], [1.0]], "row 0 holds"),
    ],
)
def test_what_is_no_matrix_of_finite_numbers_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Feature.of_all("f", values)


def test_known_must_have_a_value_a_gene():
    with pytest.raises(InputError, match=r"shape \(3, 2\), and \(2, width\)"):
        Feature("f", np.zeros((3, 2), dtype=np.float32), np.ones(2, dtype=bool))
