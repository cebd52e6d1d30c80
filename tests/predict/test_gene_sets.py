"""Blocks hold every set once, by any number of processes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.predict.gene_sets import Block, Combinations, Listed, Scored


def sets_of(pieces):
    rows = (p.sets() if isinstance(p, Block) else p for p in pieces)
    return [tuple(sorted(row)) for piece in rows for row in piece.tolist()]


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.integers(0, 20), min_size=1, max_size=9),
    st.lists(st.integers(0, 20), max_size=2, unique=True),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_every_set_is_in_one_block_once(genes, given, free, per_piece, world):
    sets = Combinations(np.array(sorted(genes)), len(given) + free, given, sets_per_piece=per_piece)
    others = sorted(genes - set(given))
    expected = sorted(tuple(sorted((*given, *rest))) for rest in combinations(others, free))
    found = sets_of(p for rank in range(world) for p in sets.pieces(rank, world))
    assert sorted(found) == expected
    assert len(expected) == sets.n_sets
    blocks = list(sets.pieces(0, 1))
    assert len(blocks) == sets.n_pieces
    assert all(len(p) == len(p.sets()) for p in blocks)
    # Resuming at any block yields the rest; one array per tile, the same in every block.
    assert sets_of(sets.pieces(1 + world, world)) == sets_of(blocks[1 + world :: world])
    tiles = {id(axis) for block in blocks for axis in block.axes[len(given) :]}
    assert len(tiles) == len(sets._tiles) or not blocks


def test_the_last_blocks_of_many_are_found_directly():
    many = Combinations(np.arange(6_600), 5, [0], sets_per_piece=128)
    (last,) = many.pieces(many.n_pieces - 1, 1)
    assert [axis.tolist() for axis in last.axes[1:]] == [last.axes[-1].tolist()] * 4
    assert not list(many.pieces(many.n_pieces, 1))


def test_random_sets_are_distinct_and_the_same_for_a_seed():
    sets = Combinations(np.arange(10, 40), 3, [3])
    drawn = sets.draw(500, seed=1)
    assert 250 < len(np.unique(drawn, axis=0)) == len(drawn) <= 435
    assert (np.diff(drawn, axis=1) > 0).all()
    assert (drawn[:, 0] == 3).all()
    assert np.array_equal(drawn, sets.draw(500, seed=1))
    assert not len(Combinations(np.arange(2), 3).draw(5, seed=0))


@settings(max_examples=50, deadline=None)
@given(
    st.sets(st.integers(0, 20), min_size=4, max_size=9),
    st.lists(st.integers(0, 20), max_size=2, unique=True),
    st.integers(1, 3),
    st.data(),
)
def test_varied_sets_differ_from_one_by_one_chosen_gene(genes, given, free, data):
    sets = Combinations(np.array(sorted(genes)), len(given) + free, given)
    every = sets_of(sets.pieces(0, 1))
    if not every:
        return
    some = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=3, unique=True))
    near = {s for s in every if any(len(set(s) & set(one)) >= len(s) - 1 for one in some)}
    found = sets.vary(np.array(some), 2_000, seed=data.draw(st.integers(0, 9)))
    rows = [tuple(row) for row in found.tolist()]
    assert len(rows) == len(set(rows))
    # Of so few sets so many draws leave none out.
    assert set(rows) | set(some) == near
    assert not len(sets.vary(np.zeros((0, len(given) + free), dtype=np.int64), 5, seed=0))


def test_a_set_has_a_gene_that_is_not_given():
    with pytest.raises(ValueError, match="2 genes with 2 given"):
        Combinations(np.arange(5), 2, [0, 1])


def test_a_list_of_several_sizes():
    triples, pairs = np.array([[0, 1, 2], [1, 2, 3], [2, 3, 4]]), np.array([[0, 1]])
    sets = Listed([triples, pairs], sets_per_piece=2)
    assert (sets.n_sets, sets.n_pieces, sets.sizes) == (4, 3, (2, 3))
    assert sets_of(sets.pieces(0, 1)) == [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4)]
    assert sets_of(sets.pieces(1, 2)) == [(0, 1, 2), (1, 2, 3)]
    scored = Scored(np.array([[3, 1]]), np.float32([1]), np.float32([0]))
    assert scored.padded(3).sets.tolist() == [[-1, 1, 3]]
