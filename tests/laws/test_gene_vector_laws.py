"""Gene vectors: complete, on one scale, and the same for a gene wherever it stands."""

import numpy as np
import pytest
import torch
from cells import random_cell
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deltacell.cell import Feature
from deltacell.models import Dango, HeteroCell
from deltacell.models.baselines import BoostedTrees
from deltacell.models.gene_vectors import feature_vectors, vector_width
from deltacell.screen import Genotypes

VALUES = st.one_of(
    st.just(float("nan")),
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([0.0, -0.0, 1.0]),
)


@st.composite
def features(draw, n_genes):
    width = draw(st.integers(1, 12))
    return Feature("f", draw(hnp.arrays(np.float32, (n_genes, width), elements=VALUES)))


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_order_of_genes_does_not_matter_bit_for_bit(data):
    n = data.draw(st.integers(1, 14))
    some = data.draw(features(n))
    dimensions = data.draw(st.integers(1, 6))
    order = np.array(data.draw(st.permutations(range(n))))
    vectors = feature_vectors(some, dimensions)
    moved = feature_vectors(some.take(order), dimensions)
    assert np.array_equal(moved, vectors[order])
    assert vectors.shape == (n, vector_width(some, dimensions))
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    # Genes with the same values have the same vector.
    twice = feature_vectors(some.take(np.r_[order, order]), dimensions)
    assert np.array_equal(twice[:n], twice[n:])


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_narrow_columns_are_standardised_over_what_is_present(data):
    feature = data.draw(features(9))
    vectors = feature_vectors(feature, 12)
    values, absent = feature.values.astype(float), np.isnan(feature.values)
    assert vectors[:, -1] == pytest.approx(absent.mean(axis=1))
    assert not vectors[:, :-1][absent].any()
    for i in range(feature.width):
        present = values[~absent[:, i], i]
        deviation = present.std() if len(present) else 0.0
        if deviation > 1e-3:
            expected = (present - present.mean()) / deviation
            assert vectors[~absent[:, i], i] == pytest.approx(expected, abs=1e-4)


def test_wide_profiles_keep_what_most_of_their_columns_say():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(900, 3))
    values = hidden @ rng.normal(size=(3, 700)) + 0.1 * rng.normal(size=(900, 700))
    values[rng.random(values.shape) < 0.3] = np.nan
    vectors = feature_vectors(Feature("f", values), 3)
    assert vectors.shape == (900, 4)
    back, *_ = np.linalg.lstsq(vectors[:, :3].astype(float), hidden, rcond=None)
    assert (hidden - vectors[:, :3] @ back).var() < 0.02 * hidden.var()
    assert vectors[:, 0].std() == pytest.approx(1, abs=0.05)
    assert (vectors[np.abs(vectors[:, :3]).argmax(axis=0), range(3)] > 0).all()
    order = rng.permutation(900)
    assert np.array_equal(feature_vectors(Feature("f", values[order]), 3), vectors[order])


@pytest.fixture
def cell():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 90))
    values[rng.random(values.shape) < 0.3] = np.nan
    values[5] = np.nan
    features = [Feature("f", values), Feature("other", values[:, :1])]
    return random_cell(40, {"a": 120}, features=features)


def changed(cell, name):
    values = -cell.features[name].values
    values[:, 0] = np.arange(40)
    return cell._with(features={**cell.features, name: Feature(name, values)})


def test_models_read_the_features_they_are_given_and_no_other(refused, cell):
    torch.manual_seed(0)
    genotypes = Genotypes.of([[0, 1], [5, 7, 9], [3]])
    models = [
        Dango(cell, ["a"], {"a": 1.0}, features=["f"], hidden=16).eval(),
        HeteroCell(cell, features=["f"], hidden=16, layers=1, local_heads=4).eval(),
        BoostedTrees(rounds=2, features=["f"]).fit(cell, genotypes, np.arange(3.0)),
    ]
    for model in models:
        with torch.no_grad():
            score = model(cell, genotypes).score
            assert torch.isfinite(score).all()
            assert torch.equal(model(changed(cell, "other"), genotypes).score, score)
            if model is models[-1]:
                refused("other-cell", model, changed(cell, "f"), genotypes)
            else:
                assert not torch.equal(model(changed(cell, "f"), genotypes).score, score)
