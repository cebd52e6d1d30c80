"""Before the first block: bounds that are near the final ones, and how long all of it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from deltacell.arrays import Ints
from deltacell.predict.block import Block
from deltacell.predict.gene_sets import GeneSets, Piece
from deltacell.predict.kept import Kept, Top

_DRAWN, _SHARE_DRAWN = 10_000, 400
_ROUNDS, _BEST = 12, 256
_VARIED, _SHARE_VARIED = 2_000, 4_000
_PLACES, _BLOCKS_A_PLACE, _SHARE_TRIED = 32, 2, 20
_TRIAL_S = 2.0
_FEW, _FEW_S = 4, 0.2


def first_sets(sets: GeneSets, kept: Kept) -> Iterator[Ints]:
    """Return sets to score first, so that the bounds are good from the start.

    Some that are drawn, and then, round by round, some that differ by one gene from the best so
    far. They are scored again where their turn comes, and count once.

    Parameters
    ----------
    sets
        All that will be gone through.
    kept
        What is kept of them; it is looked at between the rounds.
    """
    ends = [end for end in kept.ends if isinstance(end, Top)]
    drawn = sets.drawn(min(_DRAWN, sets.n_sets // _SHARE_DRAWN), seed=0)
    if not ends or not len(drawn):
        return
    yield drawn
    each = min(_VARIED, sets.n_sets // _SHARE_VARIED)
    for number in range(_ROUNDS if each else 0):
        for end in ends:
            varied = sets.varied(end.held().sets[:_BEST], each, seed=number)
            if len(varied):
                yield varied


def seconds_of(
    sets: GeneSets, numbers: range, *, prunes: bool, score: Callable[[Piece], object]
) -> float | None:
    """Return how long some pieces will take, by trying a few of them; None where they are few.

    Parameters
    ----------
    sets
        That the pieces are of.
    numbers
        Of the pieces.
    prunes
        Whether blocks take less time than their sets would.
    score
        Scores a piece as it will be.
    """
    if not numbers:
        return None
    middle = next(sets.pieces(numbers[len(numbers) // 2], 1))
    if prunes and isinstance(middle, Block):
        return _seconds_of_blocks(sets, numbers, score)
    rows = middle.sets() if isinstance(middle, Block) else middle
    if not len(rows):
        return None
    n = min(_FEW, len(rows))
    # The first of all is slower than any after it.
    score(rows[:1])
    while (took := _timed(score, rows[:n])) < _FEW_S and n < len(rows):
        n = min(4 * n, len(rows))
    return took / n * sets.n_sets * len(numbers) / sets.n_pieces


def _seconds_of_blocks(
    sets: GeneSets, numbers: range, score: Callable[[Piece], object]
) -> float | None:
    """Return how long blocks will take, by the second time that some from here and there do."""
    places = min(_PLACES, len(numbers) // _SHARE_TRIED)
    if not places:
        return None
    rng = np.random.default_rng(0)
    began, took, n = time.perf_counter(), 0.0, 0
    for place in rng.integers(len(numbers) - _BLOCKS_A_PLACE, size=places):
        for block in islice(sets.pieces(numbers[int(place)], numbers.step), _BLOCKS_A_PLACE):
            # What is worked out for two of its axes serves many blocks; it is there the next time.
            score(block)
            took, n = took + _timed(score, block), n + 1
            if time.perf_counter() - began > _TRIAL_S:
                return took / n * len(numbers)
    return took / n * len(numbers)


def _timed(score: Callable[[Piece], object], piece: Piece) -> float:
    began = time.perf_counter()
    score(piece)
    return time.perf_counter() - began
