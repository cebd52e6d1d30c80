"""The closed form of the reconstruction loss is the dense loss, and never forms all pairs."""

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
def problems(draw):
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
def test_closed_form_equals_dense(problem, lambda_):
    matrix, inputs = problem
    dense, closed = (loss(*inputs, matrix, lambda_) for loss in (dense_loss, closed_form_loss))
    torch.testing.assert_close(closed, dense, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        alone = closed_form_loss(*inputs, matrix, lambda_)
    torch.testing.assert_close(alone, dense, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(3 * loss, inputs) for loss in (closed, dense))
    for mine, plain in zip(*gradients, strict=True):
        size = float(plain.abs().max())
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10 * max(1.0, size))


def problem_of(n, edges, hidden):
    torch.manual_seed(1)
    relation = Relation.from_edges("r", *torch.randint(n, (2, edges)), n_genes=n, directed=False)
    inputs = torch.randn(n, hidden), torch.randn(n, hidden), torch.randn(n)
    return SparseMatrix.of(relation), [t.requires_grad_() for t in inputs]


def test_it_is_float32_inside_autocast():
    matrix, inputs = problem_of(50, 300, 8)
    plain = closed_form_loss(*inputs, matrix, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        cast = closed_form_loss(*inputs, matrix, 0.1)
        halves = closed_form_loss(inputs[0].bfloat16(), *inputs[1:], matrix, 0.1)
    assert torch.equal(cast, plain)
    assert halves.dtype == torch.float32
    halves.backward()
    assert inputs[0].grad is not None


def test_no_matrix_of_all_pairs_is_formed_and_nothing_as_long_as_the_edges_kept():
    n, kept = 1_000, []
    matrix, inputs = problem_of(n, 5_000, 4)

    def largest_allocation(loss):
        with torch.profiler.profile(profile_memory=True) as profiler:
            torch.stack([loss(*inputs, matrix, value) for value in (0.1, 1.0)]).sum().backward()
        return max(event.cpu_memory_usage for event in profiler.events())

    all_pairs = 4 * n * n
    assert largest_allocation(dense_loss) >= all_pairs
    assert largest_allocation(closed_form_loss) < all_pairs / 10
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.append(t.numel()), t)[1], lambda t: t
    ):
        closed_form_loss(*inputs, matrix, 0.1)
    assert max(kept) == n * 4 < matrix.n_entries
