"""What comes before the first block: better bounds, and an estimate."""

from __future__ import annotations

import time

import numpy as np
import pytest

from deltacell.predict import rank as start
from deltacell.predict.gene_sets import Block, Combinations, Listed
from deltacell.predict.kept import Kept, Top, padded
from deltacell.predict.rank import first_sets, seconds_of
from deltacell.predict.scorers import Scored

VALUES = np.random.default_rng(3).normal(size=200).astype(np.float32)
SETS = Combinations(np.arange(60), 3, sets_a_piece=4**3)


def scored(piece):
    rows = piece.sets() if isinstance(piece, Block) else piece
    nothing = np.full(len(rows), np.nan, dtype=np.float32)
    return padded(Scored(rows, VALUES[rows].sum(axis=1), nothing), rows.shape[1])


def ends():
    return Kept([Top("lowest", 10, 3), Top("highest", 10, 3)])


def test_the_bounds_are_nearly_the_last_before_the_first_block():
    sets = Combinations(np.arange(len(VALUES)), 3, sets_a_piece=30**3)
    kept, asked = ends(), 0
    for rows in first_sets(sets, kept):
        asked += len(rows)
        kept.offer(scored(rows))
    every, drawn = ends(), ends()
    for piece in sets.pieces(0, 1):
        every.offer(scored(piece))
    drawn.offer(scored(sets.drawn(asked, seed=0)))
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

    def __init__(self, monkeypatch, a_set, a_block=0.0):
        self.now, self.a_set, self.a_block, self.sets = 0.0, a_set, a_block, 0
        monkeypatch.setattr(start.time, "perf_counter", lambda: self.now)

    def score(self, piece):
        self.sets += len(piece)
        self.now += self.a_set * len(piece) + self.a_block * isinstance(piece, Block)


def test_a_trial_of_a_few_sets_tells_how_long_all_will_take(monkeypatch):
    clock = Clock(monkeypatch, a_set=0.06)
    assert seconds_of(SETS, range(SETS.n_pieces), prunes=False, score=clock.score) == pytest.approx(
        0.06 * SETS.n_sets
    )
    assert clock.sets == 5
    # A quarter of the pieces, of sets that are given one by one.
    listed = Listed([np.stack([np.arange(400), np.arange(400) + 1], axis=1)], sets_a_piece=10)
    clock = Clock(monkeypatch, a_set=0.001)
    assert seconds_of(listed, range(1, 40, 4), prunes=True, score=clock.score) == pytest.approx(0.1)


def test_a_trial_of_blocks_is_short_and_from_all_of_them(monkeypatch):
    numbers = range(SETS.n_pieces)[7::2]
    clock = Clock(monkeypatch, a_set=0.0, a_block=0.001)
    took = seconds_of(SETS, numbers, prunes=True, score=clock.score)
    assert took == pytest.approx(0.001 * len(numbers))
    assert clock.now < 0.07
    # Blocks that take long: one place is enough.
    clock = Clock(monkeypatch, a_set=0.0, a_block=1.5)
    took = seconds_of(SETS, numbers, prunes=True, score=clock.score)
    assert took == pytest.approx(1.5 * len(numbers))
    assert clock.now == 3.0


def test_few_blocks_are_not_tried(monkeypatch):
    clock = Clock(monkeypatch, a_set=1.0)
    assert seconds_of(SETS, range(10), prunes=True, score=clock.score) is None
    assert seconds_of(SETS, range(0), prunes=True, score=clock.score) is None
    assert clock.now == 0


def test_the_clock_is_real():
    sets = Combinations(np.arange(12), 2, sets_a_piece=9)
    took = seconds_of(
        sets, range(sets.n_pieces), prunes=False, score=lambda piece: time.sleep(0.01 * len(piece))
    )
    assert took is not None
    assert took > 0.01 * sets.n_sets


def test_the_last_blocks_of_many_are_as_near_as_the_first():
    many = Combinations(np.arange(6_600), 5, [0], sets_a_piece=128)
    assert many.n_pieces > 10**11
    asked = []
    assert seconds_of(many, range(many.n_pieces), prunes=True, score=asked.append) is not None
    (last,) = many.pieces(many.n_pieces - 1, 1)
    assert [axis.tolist() for axis in last.axes[1:]] == [last.axes[-1].tolist()] * 4
    assert not list(many.pieces(many.n_pieces, 1))


def test_what_is_varied_are_the_best_of_each_end(monkeypatch):
    sets = Combinations(np.arange(len(VALUES)), 3)
    kept = Kept([Top("lowest", 500, 3), Top("highest", 500, 3)])
    asked = []
    monkeypatch.setattr(
        sets, "varied", lambda rows, n, seed: (asked.append(rows), sets.drawn(n, seed))[1]
    )
    for rows in first_sets(sets, kept):
        best = [end.held().sets[:256].tolist() for end in kept.ends]
        assert not asked or asked[-1].tolist() in best
        kept.offer(scored(rows))
    assert {len(rows) for rows in asked} == {256}
