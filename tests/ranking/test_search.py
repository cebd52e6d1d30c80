"""What comes before the first block, what is kept of it, and work that was stopped."""

import numpy as np
import pytest

from deltacell.base.errors import InputError, StoreError
from deltacell.ranking import kept as kept_module
from deltacell.ranking import search
from deltacell.ranking.gene_sets import Combinations, Scored
from deltacell.ranking.kept import Kept
from deltacell.ranking.search import trial_seconds
from deltacell.ranking.work import (
    Work,
    number_of_parts,
    ranks_of_environment,
    ranks_of_part,
    read_scored,
    write_scored,
)

REQUEST = {"sets": "pairs", "top": 2}
BOTH = {"lowest": None, "highest": None}


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


def some(*scores):
    sets = np.array([[i, i + 1] for i in range(len(scores))])
    return Scored(sets, np.float32(scores), np.zeros(len(scores), dtype=np.float32))


def test_the_bounds_are_those_of_the_ends(monkeypatch, refused):
    kept = Kept(2, BOTH, 2)
    assert (kept.above, kept.below) == (-np.inf, np.inf)
    kept.offer(some(1, 2, 3))
    assert (kept.above, kept.below) == (2, 2)
    alone = Kept(2, {"lowest": None}), Kept(2, {"highest": 5.0}), Kept(2, {None: None})
    bounds = [(-np.inf, 5.0), (np.inf, np.inf)]
    assert [(one.below, one.above) for one in alone] == [(np.inf, np.inf), *bounds]
    monkeypatch.setattr(kept_module, "MOST_ROWS", 2)
    refused("too-many-rows", Kept(2, {"lowest": None}).offer, some(1, 1, 1))


def test_no_flipped_byte_becomes_other_sets(tmp_path, refused):
    path = tmp_path / "f"
    rng = np.random.default_rng(0)
    score, spread = rng.normal(size=(2, 10)).astype(np.float32)
    spread[::2] = np.nan
    found = Scored(rng.integers(0, 99, (10, 3)), score, spread)
    progress = {"request": REQUEST, "done": 3, "finished": False}
    write_scored(path, Scored.none(3), progress)
    assert read_scored(path)[0].sets.shape == (0, 3)
    write_scored(path, found, progress)
    whole = path.read_bytes()
    detected = 0
    for at in range(-1, len(whole), 3):
        changed = whole if at < 0 else whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
        path.write_bytes(changed)
        try:
            back, about = read_scored(path)
        except StoreError:
            detected += 1
            continue
        assert about == progress
        for one, other in zip(back, found, strict=True):
            assert np.array_equal(one, other, equal_nan=True)
    assert len(whole) / 3 > detected > len(whole) / 6
    # Zeros in place of the checksum and the sizes of an array make it an empty one that is whole.
    name = whole.rindex(b"sets.npy")
    path.write_bytes(whole[: name - 30] + bytes(12) + whole[name - 18 :])
    refused("damaged-work", read_scored, path)


def begin(out, ranks=(0, 1)):
    """Leave work behind, as a process does that stopped."""
    work, kept = Work(out, REQUEST, ranks), Kept(2, BOTH, 2)
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
            return work.load(Kept(2, BOTH, 2))
    except InputError as error:
        return error.code


def test_another_request_is_refused_or_discarded_and_a_second_process_locked_out(tmp_path):
    out, other = tmp_path / "out", {**REQUEST, "top": 9}
    (state,) = begin(out).folder.glob("*.state")
    assert loaded(out, other) == loaded(out, ranks=(0, 2)) == "other-request"
    assert loaded(out, overwrite=True) == 3
    assert loaded(out, other, overwrite=True) == 0
    state.write_bytes(b"PK and no more")
    assert loaded(out) == "damaged-work"
    assert loaded(out, overwrite=True) == 0
    with Work(new := tmp_path / "new", REQUEST, (0, 1)).locked():
        assert loaded(new) == "locked"
        assert loaded(new, ranks=(1, 2)) == 0
    assert loaded(new) == 0


def test_the_first_waits_for_the_others(tmp_path):
    first = begin(tmp_path / "out", (0, 2))
    assert first.unfinished() == [0, 1]
    for request, left in ((REQUEST, [0]), ({**REQUEST, "top": 9}, [0, 1])):
        work = Work(tmp_path / "out", request, (1, 2), overwrite=True)
        with work.locked():
            work.save(1, Kept(2, BOTH, 2), finished=True)
        # What another request left behind is not taken for this one's.
        assert first.unfinished() == left


def test_the_number_of_parts_is_that_of_their_files(tmp_path, refused):
    out = tmp_path / "out"
    refused("no-parts", number_of_parts, out)
    [state] = begin(out, (0, 3)).folder.glob("*.state")
    assert number_of_parts(out) == 3
    assert loaded(out, ranks=(1, 3)) == 0
    assert loaded(out, ranks=(1, 4)) == "other-request"
    # What was refused has left a lock, and no part.
    assert number_of_parts(out) == 3
    state.with_name("part-1-of-4.state").write_bytes(state.read_bytes())
    refused("other-number-of-parts", number_of_parts, out)


def test_a_damaged_part_is_scored_again_and_those_of_others_are_left(tmp_path):
    out = tmp_path / "out"
    states = [next(begin(out, (rank, 2)).folder.glob(f"part-{rank + 1}*.state")) for rank in (0, 1)]
    for state in states:
        state.write_bytes(b"PK and no more")
    assert loaded(out, ranks=(1, 2)) == "damaged-work"
    work = Work(out, REQUEST, (1, 2), repairs=True)
    assert [work.problem(rank) for rank in (0, 1)] == ["damaged", "damaged"]
    assert loaded(out, ranks=(1, 2), repairs=True) == 0
    assert [state.exists() for state in states] == [True, False]
    assert work.problem(1) == "missing"


def test_a_part_is_named_by_its_number_and_the_number_of_parts(refused):
    assert ranks_of_part("1/1") == (0, 1)
    assert ranks_of_part("17/64") == (16, 64)
    for text in ("0/4", "5/4", "4", "a/b", "1/0", "-1/4", "1/4/4", "", "１/４", "1/4 "):
        refused("invalid-part", ranks_of_part, text)


def test_the_rank_is_read_from_the_environment(monkeypatch, refused):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks_of_environment() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    refused("invalid-rank", ranks_of_environment)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ranks_of_environment() == (2, 3)
    for rank, world in (("abc", "3"), ("0", "0"), ("5", "2"), ("-1", "2"), ("1.0", "2"), ("", "")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)
        refused("invalid-rank", ranks_of_environment)
