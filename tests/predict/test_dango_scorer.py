"""Numbers near the scores of a DANGO: what they are within, and tables that are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell import Cell, Relation
from deltacell.models import Dango
from deltacell.predict.dango import AxisCache, DangoScorer, Rough
from deltacell.predict.gene_sets import Block
from deltacell.train.data import Standard


def test_logits_too_large_for_single_precision_are_left_to_others():
    edges = np.random.default_rng(0).integers(0, 40, (2, 90))
    relation = Relation.from_edges("a", *edges, n_genes=40, directed=False)
    cell = Cell([f"Y{i}" for i in range(40)], [relation])
    torch.manual_seed(1)
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=16, heads=4, layers=2)
    axes = tuple(np.split(np.arange(36), 4)[:3])
    for scale, too_large in ((1, False), (3000, True)):
        with torch.no_grad():
            model.embedding.mul_(scale)
        within = DangoScorer(model, cell, Standard()).attention_within(Block(axes))
        assert np.isinf(within) == too_large


def test_tables_are_kept_while_memory_allows():
    axes, made = [np.array([i]) for i in range(3)], []

    def make(first, second):
        made.append(int(second[0]))
        return torch.full((10,), float(second[0]))

    kept = AxisCache(make, 100)
    for i in (0, 1, 0, 2, 0, 1):
        assert kept.of((axes[0], axes[i]))[0][0] == i
    # Two fit; the one that was used last stays.
    assert made == [0, 1, 2, 1]


TABLE = torch.tensor([[0.0, 0.1], [0.2, 1.0]])


@pytest.mark.parametrize(
    ("above", "below", "near"),
    [(1.45, -9.0, [[1, 1]]), (1.55, -9.0, []), (9.0, -0.35, [[0, 0], [0, 1]])],
)
def test_what_is_within_the_bound_of_an_end_comes_and_nothing_else(above, below, near):
    assert Rough((TABLE,), 0.5).near_sums([False], above, below).tolist() == near


def test_rounding_is_within_the_bounds_too():
    mean = Rough.mean([Rough((TABLE,), 0.0), Rough((3 * TABLE,), 1.0)])
    assert 0.5 < mean.within == pytest.approx(0.5, abs=1e-5)
    torch.testing.assert_close(mean.tables[0], 2 * TABLE)
    # What cancels was rounded: half a unit in the last place of each member.
    large = 1000 * TABLE
    assert Rough.mean([Rough((large,), 0.0), Rough((-large,), 0.0)]).within >= 1000 * 2.0**-24
    # The next number below an end may reach it.
    score = torch.tensor([1.0, 0.9])
    above = float(torch.nextafter(score[0], torch.tensor(2.0)))
    assert Rough((score,), 0.0).near(above, -9.0).tolist() == [True, False]
