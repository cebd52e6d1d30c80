"""What comes before the first block: better bounds, and an estimate."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.predict import search
from deltacell.predict.gene_sets import Block, Combinations, Scored
from deltacell.predict.search import End, Kept, first_sets, trial_seconds

VALUES = np.random.default_rng(3).normal(size=200).astype(np.float32)


def scored(piece):
    rows = piece.sets() if isinstance(piece, Block) else piece
    nothing = np.full(len(rows), np.nan, dtype=np.float32)
    return Scored(rows, VALUES[rows].sum(axis=1), nothing).padded(rows.shape[1])


def ends():
    return Kept([End("lowest", 3, top=10), End("highest", 3, top=10)])


def test_the_bounds_are_nearly_the_last_before_the_first_block():
    sets = Combinations(np.arange(len(VALUES)), 3, sets_per_piece=30**3)
    kept, asked = ends(), 0
    for rows in first_sets(sets, kept):
        asked += len(rows)
        kept.offer(scored(rows))
    every, drawn = ends(), ends()
    for piece in sets.pieces(0, 1):
        every.offer(scored(piece))
    drawn.offer(scored(sets.draw(asked, seed=0)))
    assert asked < sets.n_sets / 50
    for end in ("above", "below"):
        first, by_chance, last = (abs(getattr(one, end)) for one in (kept, drawn, every))
        assert by_chance < 0.9 * last
        assert 0.95 * last < first <= last


# Of pieces that take long, one is enough, and few pieces are not tried.
@pytest.mark.parametrize(
    ("each", "most", "numbers", "tells"),
    [
        (0.001, 0.2, range(7, 680, 2), True),
        (1.5, 3.0, range(680), True),
        (1.0, 0.0, range(19), False),
    ],
)
def test_a_trial_is_short_and_tells_how_long_all_will_take(monkeypatch, each, most, numbers, tells):
    sets = Combinations(np.arange(60), 3, sets_per_piece=4**3)
    clock = [0.0]
    monkeypatch.setattr(search.time, "perf_counter", lambda: clock[0])

    def score(piece):
        clock[0] += each

    assert sets.n_pieces == 680
    took = trial_seconds(sets, numbers, score)
    assert took == pytest.approx(each * len(numbers) if tells else 0)
    assert clock[0] <= most
