"""Conversions for other libraries."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from deltacell.errors import MissingExtraError


def test_polars(screen):
    frame = screen.to_polars()
    assert frame["genes"].to_list()[1] == ["g2", "g3", "g4"]
    np.testing.assert_array_equal(frame["p_value"].to_numpy(), screen.column("p_value"))


def test_pandas(screen):
    frame = screen.to_pandas()
    assert frame["genes"].tolist() == screen.to_polars()["genes"].to_list()
    assert frame["study"].tolist() == ["a", "a", "b", "b", "b", "a"]
    np.testing.assert_array_equal(frame["score"], screen.column("score"))


def test_anndata(screen, tmp_path):
    data = screen.to_anndata()
    assert data.shape == (6, 6)
    expected = np.zeros((6, 6))
    for row, genes in enumerate(screen.genotypes):
        expected[row, genes] = 1
    np.testing.assert_array_equal(data.X.toarray(), expected)
    assert data.var_names.tolist() == list(screen.genes)
    assert data.obs["kind"].tolist() == screen.kind
    np.testing.assert_array_equal(data.obs["score"], screen.column("score"))
    data.write_h5ad(tmp_path / "screen.h5ad")


@pytest.mark.parametrize(
    ("module", "convert"), [("pandas", "to_pandas"), ("anndata", "to_anndata")]
)
def test_without_the_extra(screen, monkeypatch, module, convert):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )
    with pytest.raises(MissingExtraError, match=rf"deltacell\[{module}\]"):
        getattr(screen, convert)()
