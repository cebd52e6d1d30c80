"""`shared` and `delta`: what is different in a mutant, memory, precision, and the backward."""

import copy
import warnings

import pytest
import torch
from cells import measured_step, random_cell

from deltacell.bench.process import in_own_process
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import Delta, Shared, delta_plan
from deltacell.propagate.tiles import TileSchedule
from deltacell.propagate.transfer import TensorMap
from deltacell.screen import Genotypes

# Lists and differences wherever they are possible.
SPARSE = {"gather_cost": 0.0, "entry_cost": 0.0}
WAYS = [Shared(workers=2), Delta(tile=3), Delta(**SPARSE), Delta(5, workers=2, **SPARSE)]
GENOTYPES = Genotypes.of([[0, 1, 2], [5], [7, 9], [5], [40, 41, 42, 43, 44]])


def cell_of(n_genes, n_edges):
    return random_cell(n_genes, {"a": n_edges, "b": 2 * n_edges, "empty": 0}, directed="a")


def model_of(cell, **options):
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=16, layers=3, output="global", **options)


@pytest.fixture
def cell():
    return cell_of(60, 80)


def gradients(model, strategy, cell, genotypes):
    model.propagation = strategy
    model.zero_grad()
    (model(cell, genotypes).score * torch.arange(1.0, len(genotypes) + 1)).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_run_gives_the_same_bits_and_no_warning(cell, workers):
    model = model_of(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, again = (gradients(model, Delta(workers=workers), cell, GENOTYPES) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_parameters_that_do_not_learn_and_no_gradients_at_all(cell, way):
    model = model_of(cell).double()
    first, second = (model.layers[i] for i in (0, 1))
    frozen = [first.linears[0].weight, second.eps, model.pooling.value[0].weight]
    for parameter in (*frozen, model.encoder.embedding):
        parameter.requires_grad_(False)
    expected = gradients(model, Shared(), cell, GENOTYPES)
    assert_same(gradients(model, way, cell, GENOTYPES), expected)
    assert all(p.grad is None for p in frozen)
    score = model(cell, GENOTYPES).score
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = copy.deepcopy(model)(cell, GENOTYPES).score
        assert not found.requires_grad
        assert torch.equal(found, score)


def test_a_second_backward_adds_the_same_gradient_again(cell):
    model = model_of(cell, propagation=Delta(workers=2)).double()
    loss = model(cell, GENOTYPES).score.square().sum()
    loss.backward(retain_graph=True)
    first = [2 * p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss.backward()
    assert_same([p.grad for p in model.parameters() if p.grad is not None], first)


def reached(relation, sources):
    source, target, _ = relation.entries()
    return {int(t) for s, t in zip(source, target, strict=True) if int(s) in sources}


@pytest.mark.parametrize("lost", [[0], [3, 7, 11], [23], [1, 2, 4, 5, 6]])
def test_exactly_those_that_hear_of_it(lost, monkeypatch):
    # No relation is taken to reach every row.
    monkeypatch.setattr(delta_plan, "COVERED", 1000)
    cell = cell_of(24, 7)
    prepared = model_of(cell, propagation=Delta(**SPARSE)).prepare(cell, Genotypes.of([lost]))
    (tile,) = prepared.plan.tiles
    changed = set(lost)
    for found in tile.hops:
        each = [(reached(r, changed) | changed) - set(lost) for r in cell.relations.values()]
        assert [set(message.computed.places.tolist()) for message in found.messages] == each
        changed |= set().union(*each)
    assert set(tile.read.genes.places.tolist()) == changed
    assert set(tile.read.genes.nodes[~tile.read.living].tolist()) == set(lost)
    copied = TensorMap(torch.Tensor.clone)(tile).read.genes
    assert copied.places is copied.nodes, "tensors that are shared stay shared"


def test_with_a_bound_mutants_go_one_at_a_time_and_too_small_a_bound_is_refused(refused):
    cell = cell_of(100, 200)
    genotypes = Genotypes.of([[i, i + 1, i + 2] for i in range(8)])
    code, bounded = "max-bytes-too-small", model_of(cell, propagation=Delta(max_bytes=1000))
    least = refused(code, bounded, cell, genotypes).fields["least"]

    def prepared(**options):
        return model_of(cell, propagation=Delta(workers=1, **options)).prepare(cell, genotypes)

    assert [len(prepared(**way).plan.tiles) for way in ({}, {"max_bytes": least})] == [1, 8]
    shapes = model_of(cell).mutant_shapes(cell)
    batch = (shapes, 8, 1, torch.device("cpu"), torch.float32)
    for max_bytes in range(least, 4 * least, least // 9):
        schedule = Delta(workers=4, max_bytes=max_bytes).schedule(*batch)
        assert 1 <= schedule.workers <= 4
        assert schedule.n_kept >= 0
    assert Delta(workers=4, max_bytes=least).schedule(*batch) == TileSchedule(0, 1)
    assert Delta(workers=4, max_bytes=100 * least).schedule(*batch).workers == 4
    refused(code, Delta(max_bytes=least - 1).schedule, *batch)


@pytest.mark.slow
@pytest.mark.parametrize("mib", [200, 350])
def test_measured_memory_of_a_step_is_within_the_bound(mib):
    # In a process of its own, where no memory lies about that was used before.
    assert 0.3 * mib < in_own_process(measured_step, max_bytes=mib * 2**20)["mib"] < mib
