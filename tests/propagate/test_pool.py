from __future__ import annotations

import pytest
import torch

from deltacell.propagate.hop import Terms, pool_changes, pool_difference, wild_pool

N, T, H = 9, 3, 4


def drawn(seed: int = 0) -> tuple[Terms, Terms, torch.Tensor]:
    """Terms of a wild type, of three mutants that differ in some genes, and who lives."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wild = Terms(2 * normal(N), normal(N, H))
    changed = torch.rand(N, T, generator=generator) < 0.5
    gate = torch.where(changed, 2 * normal(N, T), wild.gate.unsqueeze(1))
    value = torch.where(changed.unsqueeze(-1), normal(N, T, H), wild.value.unsqueeze(1))
    living = torch.rand(N, T, generator=generator) < 0.7
    living[0] = True
    return wild, Terms(gate, value), living


def by_definition(wild: Terms, mutants: Terms, living: torch.Tensor) -> torch.Tensor:
    pooled = wild.gate.softmax(0) @ wild.value
    rows = []
    for t in range(living.shape[1]):
        alive = living[:, t]
        weight = mutants.gate[alive, t].softmax(0)
        rows.append(pooled - weight @ mutants.value[alive, t])
    return torch.stack(rows)


def of_changed(wild: Terms, mutants: Terms, living: torch.Tensor) -> torch.Tensor:
    different = (
        (mutants.gate != wild.gate.unsqueeze(1))
        | (mutants.value != wild.value.unsqueeze(1)).any(-1)
        | ~living
    )
    owner, rows = different.t().nonzero(as_tuple=True)
    terms = Terms(mutants.gate[rows, owner], mutants.value[rows, owner])
    at = (x.double() for x in wild_pool(wild).at(rows))
    n, d = pool_changes(Terms(terms.gate, terms.value.double()), living[rows, owner], *at)
    n = n.new_zeros(living.shape[1], H).index_add(0, owner, n)
    d = d.new_zeros(living.shape[1]).index_add(0, owner, d)
    return (n / (1 + d).unsqueeze(1)).to(wild.value.dtype)


@pytest.mark.parametrize("seed", range(5))
def test_both_forms_are_the_difference_of_two_pools(seed: int) -> None:
    wild, mutants, living = drawn(seed)
    leaves = [t.requires_grad_() for t in (*wild, *mutants)]
    expected = by_definition(wild, mutants, living)
    weights = torch.arange(1.0, T * H + 1).view(T, H)
    gradients = torch.autograd.grad((expected * weights).sum(), leaves)
    for form in (lambda w, m, a: pool_difference(wild_pool(w), m, a), of_changed):
        z = form(wild, mutants, living)
        torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-12)
        found = torch.autograd.grad((z * weights).sum(), leaves)
        # The wild type stands in for unchanged genes, so their two gradients come as one.
        for i in (0, 1):
            total = found[i] + found[i + 2].sum(1)
            wanted = gradients[i] + gradients[i + 2].sum(1)
            torch.testing.assert_close(total, wanted, rtol=1e-11, atol=1e-11)


def test_a_tiny_difference_survives_rounding() -> None:
    """In single precision, where the pools are 1e5 times larger than their difference."""
    wild, mutants, living = drawn()
    living = torch.ones_like(living)
    far = Terms(wild.gate.float(), (wild.value + 1000).float())
    gate = far.gate.unsqueeze(1) + 1e-3 * (mutants.gate - wild.gate.unsqueeze(1)).float()
    value = far.value.unsqueeze(1) + 1e-2 * (mutants.value - wild.value.unsqueeze(1)).float()
    close = Terms(gate, value)
    exact = by_definition(
        Terms(*(t.double() for t in far)), Terms(*(t.double() for t in close)), living
    )
    rounded = by_definition(far, close, living)
    for z in (pool_difference(wild_pool(far), close, living), of_changed(far, close, living)):
        error = (z - exact).abs().max()
        assert error < 1e-4 * exact.abs().max()
        assert error < 0.1 * (rounded - exact).abs().max()


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_gates_far_from_the_wild_type_s(shift: float) -> None:
    wild, mutants, living = drawn()
    wild, moved = Terms(*(t.float() for t in wild)), (mutants.gate + shift).float()
    mutants = Terms(moved, mutants.value.float())
    exact = by_definition(wild, mutants, living)
    forms = [pool_difference(wild_pool(wild), mutants, living)]
    if shift > 0:
        # Far below, the changed genes' old weight is all there is, and cannot be taken from it.
        forms.append(of_changed(wild, mutants, living))
    for z in forms:
        torch.testing.assert_close(z, exact, rtol=1e-4, atol=1e-5)


def test_a_mutant_without_a_living_gene_has_an_empty_pool() -> None:
    wild, mutants, living = drawn()
    pool = wild_pool(wild)
    z = pool_difference(pool, mutants, torch.zeros_like(living))
    torch.testing.assert_close(z, pool.pooled.expand(T, H))


def test_deleted_rows_are_not_read() -> None:
    wild, mutants, living = drawn()
    pool = wild_pool(wild)
    expected = pool_difference(pool, mutants, living)
    gate = mutants.gate.masked_fill(~living, 1e6)
    torch.testing.assert_close(pool_difference(pool, Terms(gate, mutants.value), living), expected)
