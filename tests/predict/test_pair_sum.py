"""What may reach an end by sums over pairs, and what several runs' sums come to."""

from __future__ import annotations

import pytest
import torch

from deltacell.predict.scorers import PairSum, Rough

TABLE = torch.tensor([[0.0, 0.1], [0.2, 1.0]])


def test_what_is_within_the_bound_of_an_end_comes_and_nothing_else():
    near = PairSum((TABLE,), 0.5).near([False], 1.45, -9.0)
    assert near.tolist() == [[1, 1]]
    assert not len(PairSum((TABLE,), 0.5).near([False], 1.55, -9.0))
    below = PairSum((TABLE,), 0.5).near([False], 9.0, -0.35)
    assert below.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("kind", [lambda t, w: PairSum((t,), w), Rough])
def test_a_mean_is_as_near_as_its_members_are_in_the_mean(kind):
    mean = type(kind(TABLE, 0.0)).mean([kind(TABLE, 0.0), kind(3 * TABLE, 1.0)])
    assert mean.within == pytest.approx(0.5, abs=1e-5)
    assert mean.within > 0.5
    table = mean.tables[0] if isinstance(mean, PairSum) else mean.scores
    torch.testing.assert_close(table, 2 * TABLE)


@pytest.mark.parametrize("kind", [lambda t, w: PairSum((t,), w), Rough])
def test_what_cancels_in_a_mean_was_rounded_all_the_same(kind):
    large = 1000 * TABLE
    mean = type(kind(TABLE, 0.0)).mean([kind(large, 0.0), kind(-large, 0.0)])
    # Half a unit in the last place of each member.
    assert mean.within >= 1000 * 2.0**-24


def test_the_next_number_below_an_end_may_reach_it():
    score = torch.tensor([1.0, 0.9])
    above = float(torch.nextafter(score[0], torch.tensor(2.0)))
    assert Rough(score, 0.0).near(above, -9.0).tolist() == [True, False]
