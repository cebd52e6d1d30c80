import pytest
import torch

from deltacell.propagate.pool import Terms, pool_changes, pool_difference, wild_pool

N, T, H = 9, 3, 4


def drawn(seed=0):
    """Terms of a wild type, of three mutants that differ in some genes, and who lives."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wild = Terms(2 * normal(N), normal(N, H))
    changed = torch.rand(N, T, generator=generator) < 0.5
    gate = torch.where(changed, 2 * normal(N, T), wild.gate.unsqueeze(1))
    value = torch.where(changed.unsqueeze(-1), normal(N, T, H), wild.value.unsqueeze(1))
    living = torch.rand(N, T, generator=generator) < 0.7
    living[0] = True
    return wild, Terms(gate, value), living


def by_definition(wild, mutants, living):
    pooled = wild.gate.softmax(0) @ wild.value
    each = [
        mutants.gate[alive, t].softmax(0) @ mutants.value[alive, t]
        for t, alive in enumerate(living.unbind(1))
    ]
    return pooled - torch.stack(each)


def of_all(wild, mutants, living):
    return pool_difference(wild_pool(wild), mutants, living)


def of_changed(wild, mutants, living):
    moved = (mutants.value != wild.value.unsqueeze(1)).any(-1)
    different = (mutants.gate != wild.gate.unsqueeze(1)) | moved | ~living
    owner, rows = different.t().nonzero(as_tuple=True)
    terms = Terms(mutants.gate[rows, owner], mutants.value[rows, owner].double())
    n, d = pool_changes(terms, living[rows, owner], wild_pool(wild).at(rows).double())
    n = n.new_zeros(living.shape[1], H).index_add(0, owner, n)
    d = d.new_zeros(living.shape[1]).index_add(0, owner, d)
    return (n / (1 + d).unsqueeze(1)).to(wild.value.dtype)


@pytest.mark.parametrize("form", [of_all, of_changed])
def test_a_tiny_difference_survives_rounding(form):
    """In single precision, where the pools are 1e5 times larger than their difference."""
    wild, mutants, living = drawn()
    living = torch.ones_like(living)
    far = Terms(wild.gate.float(), (wild.value + 1000).float())
    gate = far.gate.unsqueeze(1) + 1e-3 * (mutants.gate - wild.gate.unsqueeze(1)).float()
    value = far.value.unsqueeze(1) + 1e-2 * (mutants.value - wild.value.unsqueeze(1)).float()
    close = Terms(gate, value)
    wide = (Terms(*(t.double() for t in terms)) for terms in (far, close))
    exact, rounded = by_definition(*wide, living), by_definition(far, close, living)
    error = (form(far, close, living) - exact).abs().max()
    assert error < 1e-4 * exact.abs().max()
    assert error < 0.1 * (rounded - exact).abs().max()


# Far below, the changed genes' old weight is all there is, and cannot be taken from it.
@pytest.mark.parametrize(
    ("form", "shift"),
    [(of_all, -300.0), (of_all, 300.0), (of_changed, 300.0)],
)
def test_gates_far_from_the_wild_type_s(form, shift):
    wild, mutants, living = drawn()
    wild = Terms(*(t.float() for t in wild))
    mutants = Terms((mutants.gate + shift).float(), mutants.value.float())
    exact = by_definition(wild, mutants, living)
    torch.testing.assert_close(form(wild, mutants, living), exact, rtol=1e-4, atol=1e-5)
