"""What is kept does not depend on the order in which it came, nor on stops and kills."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError, StoreError
from deltacell.predict.gene_sets import Scored
from deltacell.predict.kept import End, Kept, Ranks, Work, read_batches, read_scored, write_scored

ENDS = st.sampled_from(["lowest", "highest"])
LIMITS = st.none() | st.sampled_from([-0.5, 0.0, 0.3])
REQUEST = {"sets": "pairs", "top": 2}


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


def some(*scores):
    sets = np.array([[i, i + 1] for i in range(len(scores))])
    return Scored(sets, np.float32(scores), np.zeros(len(scores), dtype=np.float32))


def rows_of(pieces):
    found = Scored.join([Scored.none(2), *pieces])
    return [(tuple(g), s) for g, s in zip(found.sets.tolist(), found.score, strict=True)]


def by_hand(end, found, most=None, limit=None):
    sign = -1 if end == "highest" else 1
    rows = [(sign * s, genes, s) for genes, s in rows_of([found])]
    rows = [r for r in rows if limit is None or r[0] <= sign * limit]
    return [(genes, score) for _, genes, score in sorted(rows)[:most]]


@settings(max_examples=150, deadline=None)
@given(scored(), ENDS, st.integers(1, 12), LIMITS, st.data())
def test_the_first_k_whatever_came_first_and_however_often(found, end, most, limit, data):
    kept, whole = (End(end, 2, top=most, limit=limit) for _ in range(2))
    n = len(found.score)
    order = data.draw(st.permutations(range(n)))
    again = data.draw(st.lists(st.integers(0, n - 1), max_size=5)) if n else []
    for place in [*order, *again]:
        kept.offer(found.take(np.array([place])))
    assert rows_of(kept.rows()) == by_hand(end, found, most, limit)
    whole.offer(found)
    assert rows_of(whole.rows()) == rows_of(kept.rows())
    # No set that is kept is beyond the bound, and those on it are let through.
    bound = kept.bound
    assert all(s >= bound if end == "highest" else s <= bound for _, s in rows_of(kept.rows()))


@settings(max_examples=60, deadline=None)
@given(scored(), ENDS, LIMITS, st.integers(1, 9), st.data())
def test_all_beyond_a_score_out_of_parts(tmp_path_factory, found, end, limit, held, data):
    options = {"folder": tmp_path_factory.mktemp("parts"), "prefix": "p", "most": held}
    kept, other = (End(end, 2, limit=limit, **options) for _ in range(2))
    n = len(found.score)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    step = data.draw(st.integers(1, 6))
    for at in range(0, n, step):
        kept.offer(found.take(order[at : at + step]))
        assert len(kept.held().score) < held
    assert rows_of(kept.rows()) == by_hand(end, found, None, limit)
    other.restore(kept.held(), kept.parts)
    assert rows_of(other.rows()) == rows_of(kept.rows())


@settings(max_examples=60, deadline=None)
@given(st.lists(scored(12), max_size=4), ENDS, st.integers(1, 5))
def test_sources_in_order_are_read_as_one(found, end, at_once):
    # The same set has the same score wherever it comes from.
    for one in found:
        one.score[:] = np.round(np.sin(one.sets.sum(axis=1)), 1)
    sources = []
    for one in found:
        top = End(end, 2, top=100)
        top.offer(one)
        held = top.held()
        sources.append(iter([held.take(slice(at, at + at_once)) for at in range(0, 12, at_once)]))
    got = rows_of(End(end, 2).merge(sources))
    every = Scored.join([Scored.none(2), *found])
    assert got == list(dict.fromkeys(by_hand(end, every)))


def test_the_bounds_are_those_of_the_ends():
    kept = Kept([End("lowest", 2, top=2), End("highest", 2, top=2)])
    assert (kept.above, kept.below) == (-np.inf, np.inf)
    kept.offer(some(1, 2, 3))
    assert (kept.above, kept.below) == (2, 2)
    assert Kept([End("lowest", 2)]).above == np.inf
    assert Kept([End("highest", 2, limit=5.0)]).above == 5.0
    assert Kept([End("highest", 2)]).below == -np.inf
    assert Kept([End(None, 2)]).below == np.inf
    cautious = End("highest", 2, top=1, cautious=True)
    cautious.offer(some(1.0, 0.8, 0.9)._replace(spread=np.float32([0.5, 0.0, 0.2])))
    assert cautious.held().sets.tolist() == [[1, 2]]
    assert cautious.bound == pytest.approx(0.8)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error(score):
    with pytest.raises(InputError) as caught:
        Kept([End("lowest", 2, top=2)]).offer(some(score))
    assert caught.value.code == "score-not-finite"


def test_no_flipped_byte_becomes_other_sets(tmp_path):
    path = tmp_path / "f"
    rng = np.random.default_rng(0)
    score, spread = rng.normal(size=(2, 40)).astype(np.float32)
    spread[::2] = np.nan
    found = Scored(rng.integers(0, 99, (40, 3)), score, spread)
    write_scored(path, Scored.none(3))
    assert read_scored(path)[0].sets.shape == (0, 3)
    write_scored(path, found, {"done": 3}, rows_per_batch=16)
    assert [len(piece.score) for piece in read_batches(path)] == [16, 16, 8]
    whole = path.read_bytes()
    detected = 0
    for at in range(-1, len(whole)):
        changed = whole if at < 0 else whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
        path.write_bytes(changed)
        try:
            back, about = read_scored(path)
        except StoreError:
            detected += 1
            continue
        assert about == {"done": 3}
        for name in ("sets", "score", "spread"):
            assert np.array_equal(getattr(back, name), getattr(found, name), equal_nan=True)
    assert len(whole) > detected > len(whole) / 2


def ends(work):
    prefix = f"{work.ranks.name()}.highest"
    beyond = End("highest", 2, folder=work.folder, prefix=prefix, most=2)
    return Kept([End("lowest", 2, top=2), beyond])


def begin(out, ranks=None):
    """Leave work behind, as a process does that stopped."""
    with Work(out, REQUEST, ranks) as work:
        kept = ends(work)
        assert work.load(kept) == 0
        kept.offer(some(3, 1, 2))
        work.save(3, kept)
    return work


def loaded(out, request=REQUEST, **options):
    with Work(out, request, **options) as work:
        return work.load(ends(work))


def code_of(*args, **options):
    with pytest.raises(InputError) as caught:
        loaded(*args, **options)
    return caught.value.code


def test_what_was_saved_is_resumed(tmp_path):
    begin(tmp_path / "out")
    with Work(tmp_path / "out", REQUEST) as work:
        kept = ends(work)
        assert work.load(kept) == 3
        assert kept.ends[0].held().score.tolist() == [1, 2]
        assert [score for _, score in rows_of(kept.ends[1].rows())] == [3, 2, 1]
        assert work.unfinished() == [0]
        work.save(5, kept, finished=True)
        assert work.unfinished() == []
        work.remove()
    assert list(tmp_path.iterdir()) == []


def test_parts_that_no_state_names_are_removed(tmp_path):
    work = begin(tmp_path / "out")
    named = set(work.folder.glob("*.arrow"))
    gone = [
        work.folder / "rank-0-of-1.highest-00007.arrow",
        work.folder / ".rank-0-of-1.state.0123.tmp",
        tmp_path / ".out.f588c5e5aa73.tmp",
    ]
    stays = [work.folder / "rank-1-of-2.highest-00000.arrow", tmp_path / ".outer.f588c5e5aa73.tmp"]
    for file in (*gone, *stays):
        file.write_bytes(b"")
    assert loaded(tmp_path / "out") == 3
    assert not any(file.exists() for file in gone)
    assert all(file.exists() for file in (*stays, *named))


def test_another_request_is_refused_or_discarded(tmp_path):
    other = {**REQUEST, "top": 9}
    begin(tmp_path / "out")
    assert code_of(tmp_path / "out", other) == "other-request"
    assert loaded(tmp_path / "out", overwrite=True) == 3
    assert loaded(tmp_path / "out", other, overwrite=True) == 0
    assert list(tmp_path.glob("*/*.arrow")) == []
    begin(tmp_path / "two", Ranks(0, 2))
    assert code_of(tmp_path / "two") == "other-world"
    assert loaded(tmp_path / "two", overwrite=True) == 0
    assert list(tmp_path.glob("*/*-of-2.state")) == []


def test_the_first_waits_for_the_others(tmp_path):
    first = begin(tmp_path / "out", Ranks(0, 2))
    assert first.unfinished() == [0, 1]
    with Work(tmp_path / "out", {**REQUEST, "top": 9}, Ranks(1, 2), overwrite=True) as work:
        work.save(1, ends(work), finished=True)
    # What another request left behind is not taken for this one's.
    assert first.unfinished() == [0, 1]


def test_two_at_once_are_not_let_in(tmp_path):
    with Work(tmp_path / "out", REQUEST):
        assert code_of(tmp_path / "out") == "locked"
        assert loaded(tmp_path / "out", ranks=Ranks(1, 2)) == 0
    assert loaded(tmp_path / "out") == 0
    (tmp_path / "file").write_text("")
    assert code_of(tmp_path / "file" / "out") == "cannot-write"


def test_damaged_work_is_an_error_whose_advice_helps(tmp_path):
    """Not --overwrite for a part, which resumes the same request and so has the same part."""
    work = begin(tmp_path / "out")
    (part,) = work.folder.glob("*.arrow")
    part.write_bytes(b"ARROW1 and no more")
    for overwrite in (False, True):
        with Work(tmp_path / "out", REQUEST, overwrite=overwrite) as work:
            kept = ends(work)
            work.load(kept)
            with pytest.raises(StoreError, match=r"Remove the folder .*out\.partial"):
                list(kept.ends[1].rows())
    (work.folder / "rank-0-of-1.state").write_bytes(b"ARROW1 and no more")
    assert code_of(tmp_path / "out") == "damaged-work"
    assert loaded(tmp_path / "out", overwrite=True) == 0
    shutil.rmtree(work.folder)
    assert loaded(tmp_path / "out") == 0


def test_which_process_this_is(monkeypatch):
    for rank, world, expected in (
        (None, None, Ranks(0, 1)),
        ("2", None, None),
        ("2", "3", Ranks(2, 3)),
        ("2", "2", None),
    ):
        for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        if expected is None:
            with pytest.raises(InputError) as caught:
                Ranks.of_environment()
            assert caught.value.code == "invalid-rank"
        else:
            assert Ranks.of_environment() == expected
