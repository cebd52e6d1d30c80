"""The reconstruction loss: its precision and what it never forms; see also its laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from deltacell import Relation
from deltacell.models.reconstruction import ReconstructionLoss, closed_form_loss, dense_loss
from deltacell.propagate.product import SparseMatrix


def matrix_of(n: int, edges: int, *, directed: bool = False) -> SparseMatrix:
    pairs = np.random.default_rng(0).integers(0, n, (2, edges))
    return SparseMatrix.of(Relation.from_edges("r", *pairs, n_genes=n, directed=directed))


def inputs_of(n: int, hidden: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(1)
    inputs = torch.randn(n, hidden), torch.randn(n, hidden), torch.randn(n)
    return [t.to(dtype).requires_grad_() for t in inputs]


@pytest.mark.parametrize("lambda_", [0.1, 1.0])
def test_its_gradients_and_its_value_without_them(lambda_: float) -> None:
    matrix, inputs = matrix_of(6, 14, directed=True), inputs_of(6, 3)
    assert gradcheck(lambda *t: closed_form_loss(*t, matrix, lambda_), inputs)
    with torch.no_grad():
        found = closed_form_loss(*inputs, matrix, lambda_)
        torch.testing.assert_close(found, dense_loss(*inputs, matrix, lambda_), rtol=1e-12, atol=0)


def test_it_is_float32_inside_autocast() -> None:
    matrix, inputs = matrix_of(50, 300), inputs_of(50, 8, torch.float32)
    plain = closed_form_loss(*inputs, matrix, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        cast = closed_form_loss(*inputs, matrix, 0.1)
        halves = closed_form_loss(inputs[0].bfloat16(), *inputs[1:], matrix, 0.1)
    assert torch.equal(cast, plain)
    assert halves.dtype == torch.float32
    halves.backward()
    assert inputs[0].grad is not None


def test_no_matrix_of_all_pairs_is_formed_and_nothing_as_long_as_the_edges_kept() -> None:
    n, kept = 1_000, []
    matrix, inputs = matrix_of(n, 5_000), inputs_of(n, 4, torch.float32)

    def largest_allocation(loss: ReconstructionLoss) -> int:
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
