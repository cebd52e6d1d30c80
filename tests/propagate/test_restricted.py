from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from deltacell.propagate import SparseMatrix
from deltacell.propagate import product as restricted_products
from deltacell.propagate.product import Entries, picked_rows


@pytest.fixture(params=["kernels", "gathered"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "gathered":
        for has in ("has_bags", "has_sparse_kernels"):
            monkeypatch.setattr(restricted_products, has, lambda *_: False)


def matrix(values: bool) -> tuple[SparseMatrix, np.ndarray]:
    drawn = csr_array(random_array((12, 9), density=0.3, rng=np.random.default_rng(0)))
    drawn.sort_indices()
    if not values:
        drawn.data[:] = 1
    data = drawn.data if values else None
    return SparseMatrix(drawn.indptr, drawn.indices, data, n_columns=9), drawn.toarray()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("rows", [[], [3], [0, 4, 5, 11]])
def test_some_rows(rows: list[int], values: bool, dtype: torch.dtype) -> None:
    handle, dense = matrix(values)
    x = torch.randn(9, 4, dtype=dtype)
    found = picked_rows(handle, np.array(rows, dtype=np.int64)).sums(x)
    expected = torch.from_numpy(dense[rows]).to(dtype) @ x
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("columns", [[], [2], [0, 3, 8]])
def test_some_columns(columns: list[int], values: bool, dtype: torch.dtype) -> None:
    handle, dense = matrix(values)
    entries = Entries.of(handle, np.array(columns, dtype=np.int64))
    part = torch.from_numpy(dense[:, columns]).to(dtype)
    x, y = torch.randn(len(columns), 4, dtype=dtype), torch.randn(12, 4, dtype=dtype)
    by_target = entries.by_target(12, entries.target)
    torch.testing.assert_close(by_target.sums(x), part @ x)
    by_source = entries.by_source(len(columns), entries.target)
    torch.testing.assert_close(by_source.sums(y), part.t() @ y)
    living = entries.target != 5
    kept = entries.kept(living)
    part[5] = 0
    torch.testing.assert_close(kept.by_target(12, kept.target).sums(x), part @ x)
