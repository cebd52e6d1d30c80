"""The closed form of the reconstruction loss is the dense loss, on any graph with any lambda."""

from __future__ import annotations

import numpy as np
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
@given(problems(), LAMBDAS)
def test_closed_form_equals_dense(
    problem: tuple[SparseMatrix, tuple[torch.Tensor, ...]], lambda_: float
) -> None:
    matrix, inputs = problem
    dense, closed = (loss(*inputs, matrix, lambda_) for loss in (dense_loss, closed_form_loss))
    torch.testing.assert_close(closed, dense, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(3 * loss, inputs) for loss in (closed, dense))
    for mine, plain in zip(*gradients, strict=True):
        size = float(plain.abs().max())
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10 * max(1.0, size))
