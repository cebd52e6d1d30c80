"""What DANGO's scores are made of: sums over pairs, the attention of one layer, triples."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from deltacell import Cell, Relation
from deltacell.models import Dango
from deltacell.predict.dango_bounds import PairSum, Rough
from deltacell.predict.dango_scorer import AxisCache, DangoScorer
from deltacell.predict.gene_sets import Block
from deltacell.screen import Genotypes
from deltacell.train.data import Standard

N = 40
STANDARD = Standard(-0.05, 0.15)
AXES = tuple(np.arange(N)[at : at + 9] for at in (0, 9, 18, 27))


def cell_of() -> Cell:
    rng = np.random.default_rng(0)
    relation = Relation.from_edges("a", *rng.integers(0, N, (2, 90)), n_genes=N, directed=False)
    return Cell([f"Y{i}" for i in range(N)], [relation])


def model_of(
    cell: Cell, *betas: float, scale: float = 30.0, heads: int = 4, largest: int | None = None
) -> Dango:
    torch.manual_seed(1)
    model = Dango(
        cell, ("a",), {"a": 1.0}, hidden=16, heads=heads, layers=len(betas), largest=largest
    )
    with torch.no_grad():
        model.embedding.mul_(scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
    return model


def own_scores(model: Dango, cell: Cell, sets: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        score = model.double()(cell, Genotypes.of(sets.tolist()), reconstruct=False).score
    return STANDARD.undo(score).numpy()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_with_uniform_attention_a_score_is_a_sum_over_pairs(size: int) -> None:
    cell = cell_of()
    model = model_of(cell, 0.4, 0.9, -0.3)
    with torch.no_grad():
        # Without queries all logits are 0. A pair has uniform attention whatever its logits.
        for layer in model.hyper_sagnn.sets.attention if size > 2 else ():
            layer.query_key_value.weight[:16] = 0
            layer.query_key_value.bias[:16] = 0
    scorer = DangoScorer(model, cell, STANDARD)
    block = Block(AXES[:size])
    found = scorer.pair_sum(block)
    total = np.zeros([len(axis) for axis in block.axes])
    for pair, table in zip(combinations(range(size), 2), found.tables, strict=True):
        total += np.expand_dims(
            table.numpy(), tuple(axis for axis in range(size) if axis not in pair)
        )
    expected = own_scores(model, cell, block.sets())
    np.testing.assert_allclose(total.ravel(), expected, rtol=1e-4, atol=1e-5)
    assert found.within < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("heads", [1, 4])
def test_the_attention_of_one_layer_is_that_of_the_model(kept: int, heads: int) -> None:
    cell = cell_of()
    betas = [0.5 if layer == kept else 0.0 for layer in range(3)]
    model = model_of(cell, *betas, heads=heads)
    scorer = DangoScorer(model, cell, STANDARD)
    block = Block(AXES[:3])
    found = scorer.with_attention(block)
    pairs = scorer.pair_sum(block)
    assert found is not None
    expected = own_scores(model, cell, block.sets())
    away = np.abs(found.scores.numpy().ravel() - expected)
    assert away.max() <= found.within < 1e-3 * np.ptp(expected)
    # Attention says something here, or this would show nothing.
    a, b, c = (table.numpy() for table in pairs.tables)
    uniform = (a[:, :, None] + b[:, None, :] + c[None]).ravel()
    assert np.abs(uniform - expected).max() > 100 * away.max()


def test_single_precision_is_the_model() -> None:
    cell = cell_of()
    model = model_of(cell, 0.5, 0.6, largest=2)
    scorer = DangoScorer(model, cell, STANDARD)
    block = Block(AXES[:3])
    model.hyper_sagnn.largest = None
    expected = own_scores(model, cell, block.sets())
    found = scorer.single(block, block.sets())
    np.testing.assert_allclose(found.scores.numpy(), expected, atol=1e-5 * np.ptp(expected))


def test_logits_too_large_for_exponentials_are_left_to_others() -> None:
    cell = cell_of()
    scorer = DangoScorer(model_of(cell, 0.5, 0.6, scale=3000), cell, STANDARD)
    assert scorer.with_attention(Block(AXES[:3])) is None


def test_tables_are_kept_while_memory_allows() -> None:
    axes = [np.arange(3) for _ in range(4)]
    made = []
    kept: AxisCache[torch.Tensor] = AxisCache(100)

    def get(i: int) -> torch.Tensor:
        return kept.get((axes[i],), lambda: (made.append(i), torch.full((10,), float(i)))[1])

    for i in (0, 1, 0, 2, 0, 1):
        assert get(i)[0] == i
    # Two fit; the one that was used last stays.
    assert made == [0, 1, 2, 1]
    assert kept.get((axes[3],), lambda: torch.zeros(1000)).shape == (1000,)


TABLE = torch.tensor([[0.0, 0.1], [0.2, 1.0]])


@pytest.mark.parametrize(
    ("above", "below", "near"),
    [(1.45, -9.0, [[1, 1]]), (1.55, -9.0, []), (9.0, -0.35, [[0, 0], [0, 1]])],
)
def test_what_is_within_the_bound_of_an_end_comes_and_nothing_else(
    above: float, below: float, near: list[list[int]]
) -> None:
    assert PairSum((TABLE,), 0.5).near([False], above, below).tolist() == near


@pytest.mark.parametrize("kind", [lambda t, w: PairSum((t,), w), Rough])
def test_a_mean_is_as_near_as_its_members_and_what_cancels_was_rounded(kind: Any) -> None:
    mean = type(kind(TABLE, 0.0)).mean([kind(TABLE, 0.0), kind(3 * TABLE, 1.0)])
    assert mean.within == pytest.approx(0.5, abs=1e-5)
    assert mean.within > 0.5
    table = mean.tables[0] if isinstance(mean, PairSum) else mean.scores
    torch.testing.assert_close(table, 2 * TABLE)
    large = 1000 * TABLE
    mean = type(mean).mean([kind(large, 0.0), kind(-large, 0.0)])
    # Half a unit in the last place of each member.
    assert mean.within >= 1000 * 2.0**-24


def test_the_next_number_below_an_end_may_reach_it() -> None:
    score = torch.tensor([1.0, 0.9])
    above = float(torch.nextafter(score[0], torch.tensor(2.0)))
    assert Rough(score, 0.0).near(above, -9.0).tolist() == [True, False]
