"""The closed form of the reconstruction loss is the dense loss, on any graph with any lambda."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell import Relation
from deltacell.models.reconstruction import closed_form_loss, dense_loss
from deltacell.propagate.product import SparseMatrix

LAMBDAS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]) | st.floats(0, 10)


@st.composite
def problems(draw: st.DrawFn) -> tuple[SparseMatrix, tuple[torch.Tensor, ...]]:
    """A random graph, from no edges to all of them, with vectors and a head."""
    n, hidden = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    adjacency = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    relation = Relation.from_edges(
        "r", *adjacency.nonzero(), n_genes=n, directed=draw(st.booleans())
    )
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    shapes = ((n, hidden), (n, hidden), (n,))
    inputs = tuple(
        torch.from_numpy(rng.normal(scale=scale, size=shape)).requires_grad_() for shape in shapes
    )
    return SparseMatrix.of(relation), inputs


@settings(max_examples=80, deadline=None)
@given(problems(), LAMBDAS, st.booleans())
def test_closed_form_equals_dense(
    problem: tuple[SparseMatrix, tuple[torch.Tensor, ...]], lambda_: float, kernels: bool
) -> None:
    matrix, inputs = problem
    dense = dense_loss(*inputs, matrix, lambda_)
    with pytest.MonkeyPatch.context() as patch:
        if not kernels:
            # Where a device has no sparse kernels, edges are gathered, here five at a time.
            patch.setattr("deltacell.models.reconstruction.has_sparse_kernels", lambda *_: False)
            patch.setattr("deltacell.models.reconstruction.GATHERED_ENTRIES", 5)
        closed = closed_form_loss(*inputs, matrix, lambda_)
    torch.testing.assert_close(closed, dense, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(3 * loss, inputs) for loss in (closed, dense))
    for mine, plain in zip(*gradients, strict=True):
        size = float(plain.abs().max())
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10 * max(1.0, size))
