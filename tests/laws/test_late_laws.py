"""Deletions that the last layers see: exact, whatever the strategy, and with their epistasis."""

from dataclasses import replace
from typing import Any

import laws
import numpy as np
import pytest
import torch
from cells import random_cell, random_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import Delta, Late, Shared
from deltacell.propagate.late import epistasis as epistasis_stage
from deltacell.screen import Genotypes

LATE = [Late(), Late(workers=2, rows_at_a_time=2)]

law = settings(laws.LAW, max_examples=12)


@law
@given(data=st.data())
def test_late_equals_deleting_in_the_last_layer(data):
    cell = data.draw(laws.small_cells())
    drawn = data.draw(laws.genotypes_of(cell))
    # A set of k genes has 2^k subsets, and a pool needs a gene.
    genotypes = drawn.take((drawn.sizes <= min(5, cell.n_genes - 1)).nonzero().squeeze(1))
    options = {
        "aggregation": ["sum", "mean"],
        "residual": [False, True],
        "dropout": [0.0, 0.4],
        "epistasis": [False, True],
        "combine": ["sum", "mean", "attention", "pairwise"],
    }
    drawn_options = {name: data.draw(st.sampled_from(v)) for name, v in options.items()}
    model = laws.model_of(cell, mutant_layers=1, **drawn_options)
    laws.assert_equals_deleting(data.draw(st.sampled_from(LATE)), model, cell, genotypes)


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("way", [Late(), Shared(tile=2)])
def test_late_equals_the_last_layers_on_the_cell_without_the_deleted_genes(way, aggregation):
    """Not only `dense`: the same layers on the subset of the cell, on the wild type's vectors."""
    cell, n = laws.fixed_cell(metabolism=False), 1 if way == Late() else 2
    model = laws.model_of(cell, aggregation=aggregation, mutant_layers=n, propagation=way)
    genotypes = Genotypes.of([[3], [0, 1], [2, 5, 7]])
    vectors = laws.vectors_of(model, cell, genotypes)
    before = model.encode(cell).wild_type.states[2 - n]["gene"]
    for b, deleted in enumerate(genotypes):
        living = np.setdiff1d(np.arange(cell.n_genes), deleted.numpy())
        hops = model.hops(cell.subset(living.tolist()))[-n:]
        after = Shared().wild_type(hops, {"gene": before[living]}).last["gene"]
        torch.testing.assert_close(vectors[b, living], after, rtol=laws.EXACT, atol=laws.EXACT)


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_wrong_ways_are_rejected(aggregation):
    cell = laws.fixed_cell(metabolism=False)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3], [0, 2]])
    model = laws.model_of(cell, aggregation=aggregation, mutant_layers=1)
    expected = laws.results(model, laws.Dense(), cell, genotypes)
    laws.assert_equals_deleting(Late(), model, cell, genotypes, expected)
    for wrong in (KeepsEdges(), Additive(), StaleMessages()):
        with pytest.raises(AssertionError):
            laws.assert_equals_deleting(wrong, model, cell, genotypes, expected)
    early = laws.model_of(cell, aggregation=aggregation)
    found = laws.results(early, Shared(), cell, genotypes)["z"]
    assert (found - expected["z"]).abs().max() > 1e-6


class KeepsEdges(Late):
    """Deletes genes from the pool, and lets others go on hearing from them."""

    def plan(self, shapes, deleted, device, **options):
        right = super().plan(shapes, deleted, device, **options)
        single = replace(right.single, units=_deaf(right.single.units))
        return replace(right, single=single, shared=_deaf(right.shared))


def _deaf(units):
    none = torch.zeros(0, dtype=torch.int64)
    messages = tuple(
        replace(m, removed=tuple(replace(r, genes=none, units=none) for r in m.removed))
        for m in units.messages
    )
    return replace(units, messages=messages)


class Additive(Late):
    """Takes a set for the sum of its genes."""

    def plan(self, shapes, deleted, device, **options):
        right = super().plan(shapes, deleted, device, **options)
        return replace(right, further=replace(right.further, signs=0 * right.further.signs))


class StaleMessages(Late):
    """Takes the messages of the wild type as constants."""

    def mutants(self, plan, hops, wild_type, readout):
        messages = tuple(
            tuple(replace(m, message=m.message.detach()) for m in of_hop)
            for of_hop in wild_type.messages
        )
        return super().mutants(plan, hops, replace(wild_type, messages=messages), readout)


def epistasis_of(model, way, cell, genotypes):
    model.propagation = way
    torch.manual_seed(5)
    with torch.no_grad():
        return model(cell, genotypes).intermediate["epistasis"]


@law
@given(data=st.data())
def test_epistasis_equals_the_dense_difference(data):
    cell = data.draw(laws.small_cells())
    gene = st.integers(0, cell.n_genes - 1)
    sets = st.lists(st.lists(gene, min_size=1, max_size=4, unique=True), min_size=1, max_size=5)
    genotypes = Genotypes.of(data.draw(sets))
    combine = data.draw(st.sampled_from(["sum", "attention"]))
    options = {"mutant_layers": 1, "epistasis": True, "combine": combine}
    model = laws.model_of(cell, aggregation=data.draw(st.sampled_from(["sum", "mean"])), **options)
    found, expected = (epistasis_of(model, w, cell, genotypes) for w in (Late(), laws.Dense()))
    off = (found - expected).norm(dim=1)
    assert (off <= 1e-8 * expected.norm(dim=1) + 1e-15).all()


def test_epistasis_survives_single_precision():
    """Where a difference of z is rounding, what is formed on shared rows is not."""
    cell = random_cell(200, dict.fromkeys("abc", 750), directed="a")
    torch.manual_seed(0)
    model = HeteroCell(cell, hidden=16, layers=2, mutant_layers=1, epistasis=True)
    genotypes = Genotypes.of(random_sets(200, 12, sizes=(2,)))
    late = epistasis_of(model, Late(), cell, genotypes)
    by_difference = epistasis_of(model, laws.Dense(), cell, genotypes)
    exact = epistasis_of(model.double(), laws.Dense(), cell, genotypes)

    def off(found):
        return float(((found - exact).norm(dim=1) / exact.norm(dim=1)).median())

    assert off(late) < 1e-3
    assert off(by_difference) > 10 * off(late)


def test_wrong_epistasis_is_rejected(monkeypatch):
    """Without the denominators' part, what is left is close and wrong."""
    cell = laws.fixed_cell(metabolism=False)
    model = laws.model_of(cell, mutant_layers=1, epistasis=True)
    genotypes = Genotypes.of([[0, 1], [2, 4], [0, 1, 2]])
    exact = epistasis_of(model, laws.Dense(), cell, genotypes)
    monkeypatch.setattr(epistasis_stage, "interaction_of_quotient", lambda n, d: n[:, -1])
    wrong = epistasis_of(model, Late(), cell, genotypes)
    assert ((wrong - exact).norm(dim=1) > 1e-4 * exact.norm(dim=1)).all()


def test_a_batch_pays_for_what_it_touches():
    """Units are touched rows: of each gene once, and of a set only rows that several touch."""
    cell = random_cell(400, dict.fromkeys("abc", 1500), directed="a")
    model = HeteroCell(cell, hidden=8, layers=2, mutant_layers=1, propagation=Late())
    touched = {
        g: {g}.union(*(r.transpose.indices[slice(*r.transpose.indptr[g : g + 2])].tolist()
                       for r in cell.relations.values()))
        for g in range(20)
    }  # fmt: skip
    pairs = [[0, g] for g in range(1, 20)]
    prepared: Any = model.prepare(cell, Genotypes.of(pairs)).plan
    assert len(prepared.single.units.rows) == sum(map(len, touched.values()))
    shared = sum(len(touched[a] & touched[b]) for a, b in pairs)
    assert len(prepared.shared.rows) == shared < cell.n_genes


def test_metabolism_is_seen_by_every_strategy():
    cell = laws.fixed_cell(metabolism=True)
    model = laws.model_of(cell, metabolism=True, mutant_layers=1, epistasis=True)
    # q1 needs gene 2 or gene 5; both together lose it, and neither alone.
    genotypes = Genotypes.of([[2, 5], [2], [0, 3]])
    lost = model(cell, genotypes).intermediate["lost"]
    reactions = model.encode(cell).wild_type.last["reaction"]
    torch.testing.assert_close(lost, torch.stack([reactions[1], 0 * reactions[0], 0 * lost[0]]))
    expected = laws.results(model, laws.Dense(), cell, genotypes)
    for way in (Shared(), Delta()):
        laws.assert_equals_deleting(way, model, cell, genotypes, expected)
