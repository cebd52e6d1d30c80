"""What a score is taken for while ranking is never further from it than is said."""

import numpy as np
import pytest
import torch
from cells import random_cell
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.models import Dango
from deltacell.models.interface import TargetScale
from deltacell.ranking.gene_sets import Block

N = 16
betas = st.lists(
    st.sampled_from([0.0, 0.0008, 0.01, 0.23, -0.25, 0.6, 1.0]),
    min_size=0,
    max_size=3,
)
scales = st.sampled_from([0.1, 1.0, 4.0, 12.0])
seeds = st.integers(0, 2**32)


def scorer_of(betas, scale, seed, heads=2):
    """Return a random DANGO whose logits grow with the square of the scale."""
    torch.manual_seed(seed)
    cell = random_cell(N, {"a": 40}, seed=seed)
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=8, heads=heads, layers=len(betas))
    with torch.no_grad():
        model.embedding.mul_(10 * scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
            layer.query_key_value.bias.normal_()
    return model.scorer(cell, TargetScale(0.3, 0.5))


def tight_scorer_of(betas, scale, seed, *, first_uniform=False):
    """Return a random DANGO of three genes with vectors of one number, where norms lose nothing."""
    torch.manual_seed(seed)
    cell = random_cell(3, {"a": 9}, seed=seed)
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=1, heads=1, layers=len(betas))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
        if first_uniform:
            first = model.hyper_sagnn.sets.attention[0].query_key_value
            first.weight[0] = first.bias[0] = 0
    return model.scorer(cell, TargetScale())


THREE = Block(tuple(np.array([i]) for i in range(3)))


def block_of(size, seed):
    """Return a block over all genes, its axes of one to four genes."""
    rng = np.random.default_rng(seed)
    genes = rng.permutation(N)
    ends = np.cumsum(rng.integers(1, 4, size))
    return Block(tuple(np.sort(part) for part in np.split(genes, ends)[:size]))


@settings(max_examples=60, deadline=None)
@given(betas, scales, st.integers(2, 3), seeds)
def test_rough_and_refined_scores_lie_within_their_bound_of_the_exact_ones(
    betas, scale, size, seed
):
    scorer, block = scorer_of(betas, scale, seed), block_of(size, seed)
    exact, sums = scorer.scores(block.sets()), scorer.rough(block)
    away = np.abs(sums.scores.double().numpy().ravel() - exact)
    assert (away <= sums.within).all()
    if size == 2:
        assert sums.within < 2e-6 * max(1, float(sums.scores.abs().max()))
        return
    single = scorer.refined(block, block.sets())
    # Far within: that rounding is bounded is known of norms, not of each operation.
    rounding = 2.0**-22 * float(single.scores.abs().max())
    away = np.abs(single.scores.double().numpy() - exact)
    assert (away <= single.within / 4 + rounding).all()


@pytest.mark.parametrize("betas", [[0.3], [0.5, 0.01], [0.3, 0.3, 0.01]])
def test_bounds_are_tight_where_norms_lose_nothing(betas):
    """Bounds hold where they are nearly reached: smaller ones would not."""
    reached = 0.0
    for seed in range(60):
        scorer = tight_scorer_of(betas, (0.5, 1.0, 2.0)[seed % 3], seed)
        exact, found = float(scorer.scores(THREE.sets())[0]), scorer.rough(THREE)
        away, rounding = abs(float(found.scores) - exact), 1e-6 * float(found.scores.abs())
        assert away <= found.within
        if found.within > 100 * rounding:
            reached = max(reached, away / found.within)
    assert reached > 0.7


def test_the_bound_includes_how_a_first_layer_moves_logits_of_the_second():
    """A first layer with uniform attention moves only the queries of the second."""
    reached = 0.0
    for seed in range(40):
        scorer = tight_scorer_of([0.5, 0.5], 1.0, seed, first_uniform=True)
        exact, found = float(scorer.scores(THREE.sets())[0]), scorer.rough(THREE)
        away = abs(float(found.scores) - exact)
        assert away <= found.within
        reached = max(reached, away / found.within)
    assert reached > 0.5
