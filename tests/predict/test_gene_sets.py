"""Every set is in one piece, once."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.predict.gene_sets import Block, Combinations, Listed


def sets_of(pieces):
    found = []
    for piece in pieces:
        rows = piece.sets() if isinstance(piece, Block) else piece
        found += [tuple(sorted(row)) for row in rows.tolist()]
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), max_size=2, unique=True),
    st.integers(1, 3),
    st.integers(1, 60),
    st.integers(1, 4),
)
def test_every_set_is_in_one_block_of_one_process(genes, given, free, a_piece, world):
    sets = Combinations(np.array(sorted(genes)), len(given) + free, given, sets_a_piece=a_piece)
    others = sorted(genes - set(given))
    expected = sorted(tuple(sorted((*given, *c))) for c in combinations(others, free))
    found = sets_of(p for rank in range(world) for p in sets.pieces(rank, world))
    assert sorted(found) == expected
    assert len(expected) == sets.n_sets
    assert len(list(sets.pieces(0, 1))) == sets.n_pieces
    assert all(len(p) == len(p.sets()) for p in sets.pieces(0, 1))


def test_going_on_from_a_block_is_the_rest_of_them():
    sets = Combinations(np.arange(9), 3, sets_a_piece=8)
    every = [sets_of([piece]) for piece in sets.pieces(1, 2)]
    assert [sets_of([piece]) for piece in sets.pieces(1 + 2 * 3, 2)] == every[3:]


def test_tiles_are_the_same_arrays_in_every_block():
    sets = Combinations(np.arange(20), 3, sets_a_piece=64)
    arrays = {id(axis) for block in sets.pieces(0, 1) for axis in block.axes}
    assert len(arrays) == 5


def test_what_is_drawn_are_sets_and_the_same_for_a_seed():
    sets = Combinations(np.arange(10, 40), 3, [3])
    drawn = sets.drawn(500, seed=1)
    assert 250 < len(drawn) <= 435
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert (drawn[:, 0] == 3).all()
    assert set(drawn[:, 1:].ravel().tolist()) == set(range(10, 40))
    assert np.array_equal(drawn, sets.drawn(500, seed=1))
    assert not len(Combinations(np.arange(2), 3).drawn(5, seed=0))


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
    found = sets.varied(np.array(some), 2_000, seed=data.draw(st.integers(0, 9)))
    rows = [tuple(row) for row in found.tolist()]
    assert len(rows) == len(set(rows))
    # Of so few sets so many draws leave none out.
    assert set(rows) | set(some) == near
    assert not len(sets.varied(np.zeros((0, len(given) + free), dtype=np.int64), 5, seed=0))


def test_a_set_has_a_gene_that_is_not_given():
    with pytest.raises(ValueError, match="2 genes with 2 given"):
        Combinations(np.arange(5), 2, [0, 1])


def test_a_list_of_several_sizes():
    triples, pairs = np.array([[0, 1, 2], [1, 2, 3], [2, 3, 4]]), np.array([[0, 1]])
    sets = Listed([triples, pairs], sets_a_piece=2)
    assert (sets.n_sets, sets.n_pieces, sets.sizes) == (4, 3, (2, 3))
    assert sets_of(sets.pieces(0, 1)) == [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4)]
    assert sets_of(sets.pieces(1, 2)) == [(0, 1, 2), (1, 2, 3)]
    assert not len(sets.drawn(10, seed=0))
    assert not len(sets.varied(pairs, 10, seed=0))
