"""What is kept does not depend on the order in which it came."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError, StoreError
from deltacell.predict.kept import (
    Beyond,
    Kept,
    Top,
    batches,
    joined,
    merged,
    no_sets,
    padded,
    read_scored,
    taken,
    write_scored,
)
from deltacell.predict.scorers import Scored

ENDS = st.sampled_from(["lowest", "highest"])


@st.composite
def scored(draw, most=40):
    """Distinct pairs with few different scores."""
    pairs = [(i, j) for i in range(8) for j in range(i + 1, 8)]
    sets = draw(st.lists(st.sampled_from(pairs), max_size=most, unique=True))
    score = draw(
        st.lists(
            st.sampled_from([-0.5, -0.0, 0.0, 0.25, 1.0]), min_size=len(sets), max_size=len(sets)
        )
    )
    return Scored(
        np.array(sets, dtype=np.int64).reshape(-1, 2),
        np.array(score, dtype=np.float32),
        np.arange(len(sets), dtype=np.float32),
    )


def by_hand(end, found, most=None, limit=None):
    sign = -1 if end == "highest" else 1
    rows = [(sign * s, tuple(g), s) for g, s in zip(found.sets.tolist(), found.score, strict=True)]
    rows = [r for r in rows if limit is None or r[0] <= sign * limit]
    return [(genes, score) for _, genes, score in sorted(rows)[:most]]


def rows_of(end):
    found = joined([no_sets(2), *end.rows()])
    return [(tuple(g), s) for g, s in zip(found.sets.tolist(), found.score, strict=True)]


@settings(max_examples=150, deadline=None)
@given(scored(), ENDS, st.integers(1, 12), st.none() | st.sampled_from([-0.5, 0.0, 0.3]), st.data())
def test_the_first_k_whatever_came_first_and_however_often(found, end, most, limit, data):
    kept = Top(end, most, 2, limit=limit)
    n = len(found.score)
    order = data.draw(st.permutations(range(n)))
    again = data.draw(st.lists(st.integers(0, n - 1), max_size=5)) if n else []
    for place in [*order, *again]:
        kept.offer(taken(found, np.array([place])))
    assert rows_of(kept) == by_hand(end, found, most, limit)
    whole = Top(end, most, 2, limit=limit)
    whole.offer(found)
    assert rows_of(whole) == rows_of(kept)
    # No set that is kept is beyond the bound, and those on it are let through.
    bound = kept.bound
    assert all(s >= bound if end == "highest" else s <= bound for _, s in rows_of(kept))


@settings(max_examples=60, deadline=None)
@given(scored(), ENDS, st.none() | st.sampled_from([-0.5, 0.0, 0.3]), st.integers(1, 9), st.data())
def test_all_beyond_a_score_out_of_parts(tmp_path_factory, found, end, limit, held, data):
    folder = tmp_path_factory.mktemp("parts")
    kept = Beyond(end, 2, folder, "p", limit=limit, most=held)
    n = len(found.score)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    step = data.draw(st.integers(1, 6))
    for at in range(0, n, step):
        kept.offer(taken(found, order[at : at + step]))
        assert len(kept.held().score) < held
    assert rows_of(kept) == by_hand(end, found, None, limit)
    assert rows_of(kept) == by_hand(end, found, None, limit)
    other = Beyond(end, 2, folder, "p", limit=limit, most=held)
    other.restore(kept.held(), kept.parts)
    assert rows_of(other) == rows_of(kept)


@settings(max_examples=60, deadline=None)
@given(st.lists(scored(12), max_size=4), ENDS, st.integers(1, 5))
def test_sources_in_order_are_read_as_one(found, end, at_once):
    # The same set has the same score wherever it comes from.
    for one in found:
        one.score[:] = np.round(np.sin(one.sets.sum(axis=1)), 1)
    each = [joined([no_sets(2), *_ordered(end, one)]) for one in found]
    sources = [
        iter(
            [
                taken(one, np.arange(len(one.score))[at : at + at_once])
                for at in range(0, 12, at_once)
            ]
        )
        for one in each
    ]
    got = joined([no_sets(2), *merged(end, sources, cautious=False)])
    distinct = {
        tuple(g): s for one in found for g, s in zip(one.sets.tolist(), one.score, strict=True)
    }
    every = Scored(
        np.array(list(distinct), dtype=np.int64).reshape(-1, 2),
        np.array(list(distinct.values()), dtype=np.float32),
        np.zeros(len(distinct), dtype=np.float32),
    )
    rows = [(tuple(g), s) for g, s in zip(got.sets.tolist(), got.score, strict=True)]
    assert rows == by_hand(end, every)


def _ordered(end, found):
    top = Top(end, 100, 2)
    top.offer(found)
    return top.rows()


def test_the_bounds_are_those_of_the_ends():
    found = Scored(np.array([[0, 1], [0, 2], [1, 2]]), np.float32([1, 2, 3]), np.float32([0, 0, 0]))
    kept = Kept([Top("lowest", 2, 2), Top("highest", 2, 2)])
    assert (kept.above, kept.below) == (-np.inf, np.inf)
    kept.offer(found)
    assert (kept.above, kept.below) == (2, 2)
    assert Kept([Top("lowest", 2, 2)]).above == np.inf
    assert Kept([Top("highest", 2, 2, limit=5.0)]).above == 5.0
    assert Kept([Top("highest", 2, 2)]).below == -np.inf
    assert Kept([Top(None, 2, 2)]).below == np.inf


def test_a_cautious_bound_is_of_the_score_less_its_spread():
    one = Top("highest", 1, 2, cautious=True)
    for genes, score, spread in (([0, 1], 1.0, 0.5), ([0, 2], 0.8, 0.0), ([0, 3], 0.9, 0.2)):
        values = (np.array([value], dtype=np.float32) for value in (score, spread))
        one.offer(Scored(np.array([genes]), *values))
    assert one.held().sets.tolist() == [[0, 2]]
    assert one.bound == pytest.approx(0.8)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error(score):
    kept = Kept([Top("lowest", 2, 2)])
    found = Scored(np.array([[0, 1]]), np.float32([score]), np.float32([0]))
    with pytest.raises(InputError, match="the score of 1 of 1 gene sets is not a finite number"):
        kept.offer(found)


def test_sets_of_several_sizes_are_padded_in_front():
    found = Scored(np.array([[3, 1]]), np.float32([1]), np.float32([0]))
    assert padded(found, 3).sets.tolist() == [[-1, 1, 3]]


def test_scored_sets_on_the_disk(tmp_path):
    n = 10
    found = Scored(
        np.arange(2 * n).reshape(n, 2),
        np.arange(n, dtype=np.float32),
        np.full(n, np.nan, dtype=np.float32),
    )
    write_scored(tmp_path / "f", found, {"done": 3}, rows_a_batch=4)
    back, about = read_scored(tmp_path / "f")
    assert about == {"done": 3}
    for a, b in zip(found, back, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(piece.score) for piece in batches(tmp_path / "f")] == [4, 4, 2]
    write_scored(tmp_path / "f", no_sets(3))
    assert read_scored(tmp_path / "f")[0].sets.shape == (0, 3)
    assert joined([no_sets(3), *batches(tmp_path / "f")]).sets.shape == (0, 3)
    (tmp_path / "f").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        read_scored(tmp_path / "f")


def test_no_flipped_byte_becomes_other_sets(tmp_path):
    path = tmp_path / "f"
    rng = np.random.default_rng(0)
    found = Scored(
        rng.integers(0, 99, (40, 3)),
        rng.normal(size=40).astype(np.float32),
        rng.normal(size=40).astype(np.float32),
    )
    write_scored(path, found, {"done": 3}, rows_a_batch=16)
    whole = path.read_bytes()
    detected = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            back, about = read_scored(path)
        except StoreError:
            detected += 1
            continue
        assert about == {"done": 3}
        for name in ("sets", "score", "spread"):
            assert np.array_equal(getattr(back, name), getattr(found, name))
    assert detected > len(whole) / 2
