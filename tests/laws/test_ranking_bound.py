"""What a score is taken for while ranking is never further from it than is said."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell import Cell, Relation
from deltacell.models import Dango
from deltacell.predict.dango_bounds import (
    AttentionBound,
    Rough,
    UniformTables,
    _from_uniform,
    _two_largest_others,
)
from deltacell.predict.dango_scorer import DangoScorer, KeptAttention
from deltacell.predict.gene_sets import Block
from deltacell.train.data import Standard

N = 16
betas = st.lists(
    st.sampled_from([0.0, 0.0008, 0.01, 0.23, -0.25, 0.6, 1.0]), min_size=0, max_size=3
)
scales = st.sampled_from([0.1, 1.0, 4.0, 12.0])
seeds = st.integers(0, 2**32)


def scorer_of(betas: list[float], scale: float, seed: int, heads: int = 2) -> DangoScorer:
    """Return a random DANGO whose logits grow with the square of the scale."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    names = [f"Y{i}" for i in range(N)]
    cell = Cell(
        names, [Relation.from_edges("a", *rng.integers(0, N, (2, 40)), n_genes=N, directed=False)]
    )
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=8, heads=heads, layers=len(betas))
    with torch.no_grad():
        model.embedding.mul_(10 * scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
            layer.query_key_value.bias.normal_()
    return DangoScorer(model, cell, Standard(0.3, 0.5))


def tight_scorer_of(
    betas: list[float], scale: float, seed: int, *, first_uniform: bool = False
) -> DangoScorer:
    """Return a random DANGO of three genes with vectors of one number, where norms lose nothing."""
    torch.manual_seed(seed)
    cell = Cell(["Y0", "Y1", "Y2"], [Relation.from_edges("a", [0], [1], n_genes=3, directed=False)])
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=1, heads=1, layers=len(betas))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
        if first_uniform:
            first = model.hyper_sagnn.sets.attention[0].query_key_value
            first.weight[0] = first.bias[0] = 0
    return DangoScorer(model, cell, Standard())


def block_of(size: int, seed: int) -> Block:
    """Return a block over all genes, its axes of one to four genes."""
    rng = np.random.default_rng(seed)
    genes = rng.permutation(N)
    ends = np.cumsum(rng.integers(1, 4, size))
    return Block(tuple(np.sort(part) for part in np.split(genes, ends)[:size]))


@settings(max_examples=100, deadline=None)
@given(betas, scales, st.integers(2, 5), seeds)
def test_a_sum_over_pairs_is_within_its_bound(
    betas: list[float], scale: float, size: int, seed: int
) -> None:
    scorer, block = scorer_of(betas, scale, seed), block_of(size, seed)
    found = scorer.pair_sum(block)
    assert found is not None
    total = np.zeros([len(axis) for axis in block.axes])
    for (a, b), table in zip(itertools.combinations(range(size), 2), found.tables, strict=True):
        shape = np.ones(size, dtype=int)
        shape[[a, b]] = table.shape
        total += table.double().numpy().reshape(shape)
    exact = scorer.scores(block.sets())
    largest = sum(float(table.abs().max()) for table in found.tables)
    assert (np.abs(total.ravel() - exact) <= found.within + 1e-6 * largest).all()
    if size == 2:
        assert found.within < 1e-6 * max(1, largest)


@settings(max_examples=100, deadline=None)
@given(betas.filter(bool), scales, seeds)
def test_the_attention_of_one_layer_is_within_its_bound(
    betas: list[float], scale: float, seed: int
) -> None:
    scorer, block = scorer_of(betas, scale, seed), block_of(3, seed)
    found = scorer.with_attention(block)
    if found is None:
        assert scale > 4
        return
    exact = scorer.scores(block.sets())
    assert (np.abs(found.scores.double().numpy().ravel() - exact) <= found.within).all()
    # With one layer that is all there is.
    if len(betas) == 1:
        assert found.within < 1e-3 * (1 + np.abs(exact).max())


@settings(max_examples=100, deadline=None)
@given(betas, scales, seeds)
def test_single_precision_is_within_its_bound(betas: list[float], scale: float, seed: int) -> None:
    scorer, block = scorer_of(betas, scale, seed), block_of(3, seed)
    found = scorer.single(block, block.sets())
    assert found is not None
    exact = scorer.scores(block.sets())
    # Far within: that rounding is bounded is known of norms, not of each operation.
    rounding = 2.0**-22 * float(found.scores.abs().max())
    assert (np.abs(found.scores.double().numpy() - exact) <= found.within / 4 + rounding).all()


@pytest.mark.parametrize("betas", [[0.3], [0.5, 0.01], [0.3, 0.3, 0.01]])
def test_bounds_are_tight_where_norms_lose_nothing(betas: list[float]) -> None:
    """Bounds hold where they are nearly reached: smaller ones would not."""
    block = Block(tuple(np.array([i]) for i in range(3)))
    reached = {"uniform": 0.0, "one layer": 0.0}
    for seed in range(90):
        scorer = tight_scorer_of(betas, (0.5, 1.0, 2.0)[seed % 3], seed)
        exact = float(scorer.scores(block.sets())[0])
        pairs, one = scorer.pair_sum(block), scorer.with_attention(block)
        assert pairs is not None
        uniform = Rough(sum(table.double() for table in pairs.tables), pairs.within)
        for name, found in (("uniform", uniform), ("one layer", one)):
            if found is None:
                continue
            rounding = 1e-6 * sum(float(table.abs()) for table in pairs.tables)
            away = abs(float(found.scores) - exact)
            assert away <= found.within + rounding
            if found.within > 100 * rounding:
                reached[name] = max(reached[name], away / found.within)
    assert reached["uniform"] > 0.7
    if len(betas) > 1:
        assert reached["one layer"] > 0.6


def test_what_earlier_layers_do_to_logits_is_in_the_bound() -> None:
    """A first layer with uniform attention moves only the queries of the second."""
    block = Block(tuple(np.array([i]) for i in range(3)))
    moved = 0
    for seed in range(60):
        scorer = tight_scorer_of([0.5, 0.5], 1.0, seed, first_uniform=True)
        exact = float(scorer.scores(block.sets())[0])
        found = scorer.with_attention(block)
        if found is not None:
            away = abs(float(found.scores) - exact)
            assert away <= found.within
            moved += away > 1e-3 * abs(exact)
    assert moved > 5


@pytest.mark.parametrize("others", [2, 3, 5])
def test_how_far_attention_may_be_from_uniform(others: int) -> None:
    """By the range of its logits; with all of them at its ends it is nearly reached."""
    rng = np.random.default_rng(0)
    reached = 0.0
    for scale in np.repeat([0.1, 1.0, 3.0], 100):
        for logits in (rng.normal(size=others) * scale, rng.integers(0, 2, others) * scale):
            weights = np.exp(logits) / np.exp(logits).sum()
            away = np.abs(weights - 1 / others).sum() / 2
            bound = float(_from_uniform(np.ptp(logits), others))
            assert away <= bound + 1e-12
            reached = max(reached, away / bound if bound else 0.0)
    assert reached > 0.9


@pytest.mark.parametrize("size", [3, 4, 5])
def test_two_of_the_others_are_the_two_largest(size: int) -> None:
    norms = np.random.default_rng(0).random((size, 2))
    found = _two_largest_others(norms)
    for i, head in itertools.product(range(size), range(2)):
        others = np.delete(norms[:, head], i)
        pairs = [a + b for a, b in itertools.combinations(others.tolist(), 2)]
        assert found[i, head] == pytest.approx(max(pairs))


def test_what_an_earlier_layer_moved_goes_on_through_the_kept_one() -> None:
    """Where the kept layer's attention is uniform, that is all that its part of the bound has."""
    block = Block(tuple(np.array([i]) for i in range(3)))
    reached = 0.0
    for seed in range(60):
        scorer = tight_scorer_of([0.5, 0.5], 1.0, seed)
        sets = scorer._sets
        second = sets.attention[1].query_key_value
        with torch.no_grad():
            second.weight[0] = second.bias[0] = 0
            second.weight[2] *= 10
        tables = UniformTables.of(sets, scorer._genes, 3)
        scorer._tables = {3: tables}
        scorer._kept = (KeptAttention(sets, tables, 1, Standard()), AttentionBound(sets, tables, 1))
        found = scorer.with_attention(block)
        assert found is not None
        exact = float(sets(scorer._genes[None, :3], torch.ones(1, 3, dtype=torch.bool))[0])
        away = abs(float(found.scores) - exact)
        assert away <= found.within
        if away > 1e-4 * abs(exact):
            reached = max(reached, away / found.within)
    assert reached > 0.5
