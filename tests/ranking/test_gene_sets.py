"""Blocks hold every set once, by any number of processes."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.ranking.gene_sets import AllPairs, Combinations

given_genes = st.lists(st.integers(0, 20), max_size=2, unique=True)


def sets_of(blocks):
    return [tuple(sorted(row)) for block in blocks for row in block.sets().tolist()]


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.integers(0, 20), min_size=1, max_size=9),
    given_genes,
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_every_set_is_in_one_block_once(genes, given, free, per_piece, world):
    sets = Combinations(np.array(sorted(genes)), len(given) + free, given, sets_per_piece=per_piece)
    others = sorted(genes - set(given))
    expected = sorted(tuple(sorted((*given, *rest))) for rest in combinations(others, free))
    found = sets_of(p for rank in range(world) for p in sets.pieces(rank, world))
    assert (sorted(found), sets.n_sets) == (expected, len(expected))
    blocks = list(sets.pieces(0, 1))
    assert len(blocks) == sets.n_pieces
    assert all(len(p) == len(p.sets()) for p in blocks)
    # Resuming at any block yields the rest; one array per tile, the same in every block.
    assert sets_of(sets.pieces(1 + world, world)) == sets_of(blocks[1 + world :: world])
    tiles = {id(axis) for block in blocks for axis in block.axes[len(given) :]}
    assert len(tiles) == len(sets._tiles) or not blocks


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(9)), st.integers(0, 9), st.integers(1, 40), st.integers(1, 3))
def test_every_pair_is_in_one_piece_with_others_of_its_first_gene(genes, n, per_piece, world):
    genes = np.array(genes[:n], dtype=np.int64)
    pairs = AllPairs(genes, sets_per_piece=per_piece)
    pieces = [piece for rank in range(world) for piece in pairs.pieces(rank, world)]
    found = [tuple(row) for piece in pieces for row in piece.tolist()]
    assert sorted(found) == sorted(combinations(genes.tolist(), 2))
    assert (len(found), len(pieces)) == (pairs.n_sets, pairs.n_pieces)
    assert all(0 < len(piece) < per_piece + max(n, 2) for piece in pieces)
    firsts = [first for piece in pieces for first in set(piece[:, 0].tolist())]
    assert len(firsts) == len(set(firsts))
