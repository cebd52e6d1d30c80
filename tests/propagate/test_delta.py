from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Deleted, Delta, Dense, Propagation, Rates, Shared
from deltacell.screen import Genotypes

SPARSE = Rates(entry=1.0, far_entry=1.0, flop_forward=1.0, moved=1e-9, picked=1e-9, found=1e-9)
WAYS = [Delta(), Delta(tile=3), Delta(rates=SPARSE), Delta(rates=SPARSE, tile=5, workers=2)]


def cell_of(n_genes: int, n_edges: int) -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            f"r{i}", *rng.integers(0, n_genes, (2, n)), n_genes=n_genes, directed=i == 0
        )
        for i, n in enumerate((n_edges, 2 * n_edges, 0))
    ]
    return Cell([f"g{i}" for i in range(n_genes)], relations)


def model_of(cell: Cell, **options: Any) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=16, layers=3, output="global", **options)


@pytest.fixture
def cell() -> Cell:
    return cell_of(60, 80)


@pytest.fixture
def genotypes() -> Genotypes:
    return Genotypes.of([[0, 1, 2], [5], [7, 9], [5], [40, 41, 42, 43, 44]])


def gradients(
    model: HeteroCell, strategy: Propagation, cell: Cell, genotypes: Genotypes
) -> list[torch.Tensor]:
    model.propagation = strategy
    model.zero_grad()
    (model(cell, genotypes).score * torch.arange(1.0, len(genotypes) + 1)).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "tile is 0; expected 1 or more"),
        ({"rows_at_a_time": -1}, "rows_at_a_time is -1; expected 0 or more"),
        ({"workers": 0}, "workers is 0; expected 1 or more"),
        ({"max_bytes": 0}, "max_bytes is 0; expected 1 or more"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Delta(**options)


def test_in_single_precision_it_is_as_close_as_rounding_allows() -> None:
    cell = cell_of(400, 3000)
    rng = np.random.default_rng(1)
    genotypes = Genotypes.of([rng.choice(400, 3, replace=False).tolist() for _ in range(12)])
    model = model_of(cell)

    def scores(strategy: Propagation) -> torch.Tensor:
        model.propagation = strategy
        with torch.no_grad():
            return model(cell, genotypes).score

    reference = scores(Dense())
    for way in WAYS:
        assert (scores(way) - reference).abs().max() < 1e-2 * reference.std()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_run_gives_the_same_bits(cell: Cell, genotypes: Genotypes, workers: int) -> None:
    model = model_of(cell)
    first = gradients(model, Delta(workers=workers), cell, genotypes)
    again = gradients(model, Delta(workers=workers), cell, genotypes)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_genotypes_prepared_by_another_strategy(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell).double()
    expected = model(cell, genotypes).score
    plain = Deleted.of(cell, genotypes)
    model.propagation = Delta()
    torch.testing.assert_close(model(cell, plain).score, expected, rtol=1e-10, atol=1e-12)


def test_a_wild_type_without_its_parts(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell).double()
    hops, state = model.hops(cell), {"gene": model.encoder(cell)}
    deleted = Deleted.of(cell, genotypes)
    wild_type = Shared().wild_type(hops, state)
    expected = Shared().mutants(hops, wild_type, deleted, model.pooling).z
    found = Delta().mutants(hops, wild_type, deleted, model.pooling).z
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def test_a_mutant_without_any_gene() -> None:
    cell = cell_of(4, 6)
    genotypes = Genotypes.of([[0, 1, 2, 3], [2]])
    model = model_of(cell).double()
    expected = gradients(model, Shared(), cell, genotypes)
    for way in (Delta(tile=1, rates=SPARSE), Delta(tile=2, rates=SPARSE)):
        for a, b in zip(gradients(model, way, cell, genotypes), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_parameters_that_do_not_learn(cell: Cell, genotypes: Genotypes, way: Delta) -> None:
    model = model_of(cell).double()
    frozen = [
        model.layers[0].gin.linears[0].weight,
        model.layers[1].gin.eps,
        model.pooling.value.weight,
        model.encoder.embedding,
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
    expected = gradients(model, Shared(), cell, genotypes)
    for a, b in zip(gradients(model, way, cell, genotypes), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert all(p.grad is None for p in frozen)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", WAYS)
def test_without_gradients(cell: Cell, genotypes: Genotypes, way: Delta, mode: Any) -> None:
    model = model_of(cell).double()
    model.propagation = way
    expected = model(cell, genotypes).score
    with mode():
        found = model(cell, genotypes).score
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_going_back_twice(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell).double()
    model.propagation = Delta(workers=2)
    loss = model(cell, genotypes).score.square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for parameter, once in zip(model.parameters(), first, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * once, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("combine", ["sum", "attention"])
@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_in_the_row_wise_part(
    cell: Cell, genotypes: Genotypes, way: Delta, combine: str
) -> None:
    model = model_of(cell, combine=combine)

    def found(strategy: Propagation) -> tuple[torch.Tensor, torch.Tensor]:
        model.propagation = strategy
        model.zero_grad()
        z = model(cell, genotypes).intermediate["z"]
        z.float().square().sum().backward()
        gradient = model.encoder.embedding.grad
        assert gradient is not None
        assert z.dtype == gradient.dtype == torch.float32
        return z.detach(), gradient.clone()

    exact = found(way)
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        rounded, shared = found(way), found(Shared())
    for a, b, c in zip(rounded, exact, shared, strict=True):
        # Rounded, and no more than where all rows are computed.
        assert 0 < (a - b).norm() < 2 * (c - b).norm() + 0.02 * b.norm()


def test_nothing_is_warned_of(cell: Cell, genotypes: Genotypes) -> None:
    model = model_of(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in WAYS:
            gradients(model, way, cell, genotypes)


def test_the_local_head_and_a_copy_of_the_model(cell: Cell, genotypes: Genotypes) -> None:
    import copy

    torch.manual_seed(0)
    model = HeteroCell(cell, hidden=16, layers=2, propagation="delta")
    twin = copy.deepcopy(model)
    torch.testing.assert_close(
        twin(cell, genotypes).score, model(cell, genotypes).score, rtol=0, atol=0
    )
