"""What comes before the first block: better bounds, and an estimate."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.predict import search
from deltacell.predict.gene_sets import Block, Combinations, Listed, Scored
from deltacell.predict.kept import End, Kept
from deltacell.predict.search import first_sets, trial_seconds
from deltacell.words import duration_text

VALUES = np.random.default_rng(3).normal(size=200).astype(np.float32)
SETS = Combinations(np.arange(60), 3, sets_per_piece=4**3)


def scored(piece):
    rows = piece.sets() if isinstance(piece, Block) else piece
    nothing = np.full(len(rows), np.nan, dtype=np.float32)
    return Scored(rows, VALUES[rows].sum(axis=1), nothing).padded(rows.shape[1])


def ends(top=10):
    return Kept([End("lowest", 3, top=top), End("highest", 3, top=top)])


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
    for first, by_chance, last in (
        (kept.above, drawn.above, every.above),
        (kept.below, drawn.below, every.below),
    ):
        assert abs(by_chance) < 0.9 * abs(last)
        assert 0.95 * abs(last) < abs(first) <= abs(last)


def test_nothing_is_drawn_where_it_would_not_help():
    assert not list(first_sets(SETS, Kept([])))
    assert not list(first_sets(Combinations(np.arange(5), 3), ends()))
    assert not list(first_sets(Listed([np.array([[0, 1]])]), ends()))


class Clock:
    """Time that passes by what is scored."""

    def __init__(self, monkeypatch, per_set, per_block=0.0):
        self.now, self.per_set, self.per_block, self.sets = 0.0, per_set, per_block, 0
        monkeypatch.setattr(search.time, "perf_counter", lambda: self.now)

    def score(self, piece):
        self.sets += len(piece)
        self.now += self.per_set * len(piece) + self.per_block * isinstance(piece, Block)


def test_a_trial_of_a_few_sets_tells_how_long_all_will_take(monkeypatch):
    clock = Clock(monkeypatch, per_set=0.06)
    took = trial_seconds(SETS, range(SETS.n_pieces), False, clock.score)
    assert took == pytest.approx(0.06 * SETS.n_sets)
    assert clock.sets == 5
    # A quarter of the pieces, of sets that are given one by one.
    listed = Listed([np.stack([np.arange(400), np.arange(400) + 1], axis=1)], sets_per_piece=10)
    clock = Clock(monkeypatch, per_set=0.001)
    assert trial_seconds(listed, range(1, 40, 4), True, clock.score) == pytest.approx(0.1)


def test_a_trial_of_blocks_is_short_and_from_all_of_them(monkeypatch):
    numbers = range(SETS.n_pieces)[7::2]
    # Of blocks that take long, one place is enough.
    for per_block, most in ((0.001, 0.07), (1.5, 3.0)):
        clock = Clock(monkeypatch, per_set=0.0, per_block=per_block)
        took = trial_seconds(SETS, numbers, True, clock.score)
        assert took == pytest.approx(per_block * len(numbers))
        assert clock.now <= most
    for few in (range(10), range(0)):
        assert trial_seconds(SETS, few, True, clock.score) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "2 seconds"), (119, "119 seconds"), (180, "3 minutes"), (200_000, "2 days")],
)
def test_times_in_words(seconds, said):
    assert duration_text(seconds) == said
