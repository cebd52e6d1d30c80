"""What is kept does not depend on the order in which it came, nor on stops and kills."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.errors import InputError, StoreError
from deltacell.predict import search as module
from deltacell.predict.gene_sets import Scored
from deltacell.predict.search import (
    End,
    Kept,
    Work,
    ranks_of_environment,
    read_scored,
    write_scored,
)

REQUEST = {"sets": "pairs", "top": 2}


def some(*scores):
    sets = np.array([[i, i + 1] for i in range(len(scores))])
    return Scored(sets, np.float32(scores), np.zeros(len(scores), dtype=np.float32))


def test_the_bounds_are_those_of_the_ends(monkeypatch):
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
    assert cautious.rows().sets.tolist() == [[1, 2]]
    assert cautious.bound == pytest.approx(0.8)
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    for score, code in ((1.0, "too-many-rows"), (np.nan, "score-not-finite")):
        with pytest.raises(InputError) as caught:
            Kept([End("lowest", 2)]).offer(some(score, score, score))
        assert caught.value.code == code


def test_no_flipped_byte_becomes_other_sets(tmp_path):
    path = tmp_path / "f"
    rng = np.random.default_rng(0)
    score, spread = rng.normal(size=(2, 10)).astype(np.float32)
    spread[::2] = np.nan
    found = Scored(rng.integers(0, 99, (10, 3)), score, spread)
    write_scored(path, Scored.none(3))
    assert read_scored(path)[0].sets.shape == (0, 3)
    write_scored(path, found, {"done": 3})
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
        for one, other in zip(back, found, strict=True):
            assert np.array_equal(one, other, equal_nan=True)
    assert len(whole) > detected > len(whole) / 2


def ends():
    return Kept([End("lowest", 2, top=2), End("highest", 2)])


def begin(out, ranks=(0, 1)):
    """Leave work behind, as a process does that stopped."""
    work, kept = Work(out, REQUEST, ranks), ends()
    with work.locked():
        assert work.load(kept) == 0
        kept.offer(some(3, 1, 2))
        work.save(3, kept)
    return work


def loaded(out, request=REQUEST, ranks=(0, 1), **options):
    """Return how far an earlier process came, or the code of the error."""
    work = Work(out, request, ranks, **options)
    try:
        with work.locked():
            return work.load(ends())
    except InputError as error:
        return error.code


def test_another_request_is_refused_or_discarded(tmp_path):
    out, other = tmp_path / "out", {**REQUEST, "top": 9}
    (state,) = begin(out).folder.glob("*.state")
    assert loaded(out, other) == loaded(out, ranks=(0, 2)) == "other-request"
    assert loaded(out, overwrite=True) == 3
    assert loaded(out, other, overwrite=True) == 0
    state.write_bytes(b"PK and no more")
    assert loaded(out) == "damaged-work"
    assert loaded(out, overwrite=True) == 0


def test_the_first_waits_for_the_others(tmp_path):
    first = begin(tmp_path / "out", (0, 2))
    assert first.unfinished() == [0, 1]
    for request, left in ((REQUEST, [0]), ({**REQUEST, "top": 9}, [0, 1])):
        work = Work(tmp_path / "out", request, (1, 2), overwrite=True)
        with work.locked():
            work.save(1, ends(), finished=True)
        # What another request left behind is not taken for this one's.
        assert first.unfinished() == left


def test_two_at_once_are_not_let_in(tmp_path):
    with Work(tmp_path / "out", REQUEST, (0, 1)).locked():
        assert loaded(tmp_path / "out") == "locked"
        assert loaded(tmp_path / "out", ranks=(1, 2)) == 0
    assert loaded(tmp_path / "out") == 0
    (tmp_path / "file").write_text("")
    assert loaded(tmp_path / "file" / "out") == "cannot-write"


def test_which_process_this_is(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks_of_environment() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InputError):
        ranks_of_environment()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ranks_of_environment() == (2, 3)
