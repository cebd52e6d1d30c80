"""DANGO depends on the genotype and the cell alone; its closed-form loss is the dense one."""

import numpy as np
import torch
from cells import random_cell
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell import Genotypes, Relation
from deltacell.models import Dango
from deltacell.models.dango.reconstruction import closed_form_loss, dense_loss
from deltacell.propagate.product import SparseMatrix

N = 14
LAMBDAS = {"a": 0.1, "b": 1.0, "c": 0.5}
EXACT = {"rtol": 1e-10, "atol": 1e-12}

gene_sets = st.lists(
    st.lists(st.integers(0, N - 1), min_size=1, max_size=6, unique=True),
    min_size=1,
    max_size=7,
)
seeds = st.integers(0, 2**32)


def _cell(seed):
    return random_cell(N, dict.fromkeys(LAMBDAS, 40), directed="b", seed=seed)


def _model(cell, seed):
    torch.manual_seed(seed)
    model = Dango(cell, tuple(LAMBDAS), LAMBDAS, hidden=8).double()
    for layer in model.hyper_sagnn.sets.attention:
        # Far from its start, so that attention weighs in the score.
        torch.nn.init.constant_(layer.beta, 0.8)
    return model


@settings(max_examples=20, deadline=None)
@given(gene_sets, seeds, st.permutations(range(N)), st.randoms(use_true_random=False))
@torch.no_grad()
def test_neither_other_genotypes_nor_order_nor_numbering_matter(sets, seed, order, random):
    cell = _cell(seed)
    model = _model(cell, seed)
    old = model(cell, Genotypes.of(sets), wanted=["reconstruction"])
    shuffled = (Genotypes.of([random.sample(s, len(s))]) for s in sets)
    alone = [model(cell, one) for one in shuffled]
    torch.testing.assert_close(old.score, torch.cat([p.score for p in alone]), **EXACT)
    vectors = torch.cat([p.intermediate["z"] for p in alone])
    torch.testing.assert_close(old.intermediate["z"], vectors, **EXACT)
    new_cell, new_model = cell.subset(order), _model(cell, seed)
    taken = torch.tensor(order)
    new_model.embedding.copy_(model.embedding[taken])
    for one, other in zip(new_model.reconstruction.heads, model.reconstruction.heads, strict=True):
        one.weight.copy_(other.weight[taken])
        one.bias.copy_(other.bias[taken])
    renamed = Genotypes.of([[order.index(gene) for gene in s] for s in sets])
    new = new_model(new_cell, renamed, wanted=["reconstruction"])
    torch.testing.assert_close(new.score, old.score, **EXACT)
    of_new, of_old = (p.intermediate for p in (new, old))
    torch.testing.assert_close(of_new["reconstruction"], of_old["reconstruction"], **EXACT)
    torch.testing.assert_close(of_new["genes"], of_old["genes"][taken], **EXACT)


@st.composite
def problems(draw):
    """A random graph, from no edges to all of them, with vectors and a head."""
    n, hidden = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    adjacency = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    relation = Relation.from_edges(
        "r",
        *adjacency.nonzero(),
        n_genes=n,
        directed=draw(st.booleans()),
    )
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    shapes = ((n, hidden), (n, hidden), (n,))
    inputs = tuple(
        torch.from_numpy(rng.normal(scale=scale, size=shape)).requires_grad_() for shape in shapes
    )
    return SparseMatrix.of(relation), inputs


@settings(max_examples=50, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]) | st.floats(0, 10))
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
    inputs = torch.randn(n, hidden), torch.randn(n, hidden), torch.randn(n)
    matrix = SparseMatrix.of(random_cell(n, {"a": edges}).relation("a"))
    return matrix, [t.requires_grad_() for t in inputs]


def test_the_closed_form_loss_is_float32_inside_autocast():
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
        lambda t: (kept.append(t.numel()), t)[1],
        lambda t: t,
    ):
        closed_form_loss(*inputs, matrix, 0.1)
    assert max(kept) == n * 4 < matrix.n_entries
