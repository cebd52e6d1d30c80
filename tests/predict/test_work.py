"""Work under way: whose it is, what is left after a kill, and when it is another's."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from deltacell.errors import InputError, StoreError
from deltacell.predict.kept import Beyond, Kept, Top
from deltacell.predict.scorers import Scored
from deltacell.predict.work import Ranks, Work

REQUEST = {"sets": "pairs", "top": 2}


def ends(work):
    prefix = f"{work.ranks.name()}.highest"
    return Kept([Top("lowest", 2, 2), Beyond("highest", 2, work.folder, prefix, most=2)])


def some(*scores):
    n = len(scores)
    sets = np.array([[i, i + 1] for i in range(n)])
    return Scored(sets, np.array(scores, dtype=np.float32), np.zeros(n, dtype=np.float32))


def begun(out, done=3, **options):
    """Leave work behind, as a process does that stopped."""
    with Work(out, REQUEST, **options) as work:
        kept = ends(work)
        assert work.load(kept) == 0
        kept.offer(some(3, 1, 2))
        work.save(done, kept)
    return work


def test_what_was_saved_is_gone_on_with(tmp_path):
    begun(tmp_path / "out")
    with Work(tmp_path / "out", REQUEST) as work:
        kept = ends(work)
        assert work.load(kept) == 3
        assert kept.ends[0].held().score.tolist() == [1, 2]
        assert np.concatenate([p.score for p in kept.ends[1].rows()]).tolist() == [3, 2, 1]
        assert not work.has_finished
        work.save(5, kept, finished=True)
        assert work.has_finished
        assert work.waits_for() == []
        work.remove()
    assert list(tmp_path.iterdir()) == []


def test_parts_that_no_state_names_are_swept_away(tmp_path):
    work = begun(tmp_path / "out")
    left = work.folder / "rank-0-of-1.highest-00007.arrow"
    half = work.folder / ".rank-0-of-1.state.0123.tmp"
    others = work.folder / "rank-1-of-2.highest-00000.arrow"
    # A kill while the ranking itself was written.
    ranking, mine = tmp_path / ".out.f588c5e5aa73.tmp", tmp_path / ".outer.f588c5e5aa73.tmp"
    for file in (left, half, others, ranking, mine):
        file.write_bytes(b"")
    with Work(tmp_path / "out", REQUEST) as work:
        kept = ends(work)
        work.load(kept)
    assert not left.exists()
    assert not half.exists()
    assert others.exists()
    assert not ranking.exists()
    assert mine.exists()
    assert all((work.folder / part).exists() for part in kept.ends[1].parts)


def test_another_request_is_refused_with_what_differs(tmp_path):
    begun(tmp_path / "out")
    with (
        pytest.raises(InputError, match=r"top was 2 and is 9.*\n.*--overwrite"),
        Work(tmp_path / "out", {**REQUEST, "top": 9}),
    ):
        pass


def test_overwrite_gives_up_what_is_another_request_and_no_more(tmp_path):
    begun(tmp_path / "out")
    with Work(tmp_path / "out", REQUEST, overwrite=True) as work:
        assert work.load(ends(work)) == 3
    with Work(tmp_path / "out", {**REQUEST, "top": 9}, overwrite=True) as work:
        assert work.load(ends(work)) == 0
        assert list(work.folder.glob("*.arrow")) == []


def test_another_number_of_processes_is_refused(tmp_path):
    begun(tmp_path / "out", ranks=Ranks(0, 2))
    with (
        pytest.raises(InputError, match="begun with 2 processes, and now there are 1"),
        Work(tmp_path / "out", REQUEST),
    ):
        pass
    with Work(tmp_path / "out", REQUEST, overwrite=True) as work:
        assert work.load(ends(work)) == 0
        assert list(work.folder.glob("*-of-2.state")) == []


def test_the_first_waits_for_the_others(tmp_path):
    first = Work(tmp_path / "out", REQUEST, Ranks(0, 2))
    begun(tmp_path / "out", ranks=Ranks(0, 2))
    assert first.waits_for() == [0, 1]
    with Work(tmp_path / "out", {**REQUEST, "top": 9}, Ranks(1, 2), overwrite=True) as work:
        work.save(1, ends(work), finished=True)
    # What another request left behind is not taken for this one's.
    assert first.waits_for() == [0, 1]


def test_two_at_once_are_not_let_in(tmp_path):
    with Work(tmp_path / "out", REQUEST):
        with (
            pytest.raises(InputError, match="another process is at work"),
            Work(tmp_path / "out", REQUEST),
        ):
            pass
        with Work(tmp_path / "out", REQUEST, Ranks(1, 2)):
            pass
    with Work(tmp_path / "out", REQUEST):
        pass


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreError, match="could not be made"),
        Work(tmp_path / "file" / "out", REQUEST),
    ):
        pass


def test_a_damaged_part_is_an_error_whose_advice_helps(tmp_path):
    """Not --overwrite, which goes on with the same request and so with the same part."""
    work = begun(tmp_path / "out")
    (part,) = work.folder.glob("*.arrow")
    part.write_bytes(b"ARROW1 and no more")
    for overwrite in (False, True):
        with Work(tmp_path / "out", REQUEST, overwrite=overwrite) as work:
            kept = ends(work)
            work.load(kept)
            with pytest.raises(StoreError, match=r"Remove the folder .*out\.partial"):
                list(kept.ends[1].rows())
    shutil.rmtree(work.folder)
    with Work(tmp_path / "out", REQUEST) as work:
        assert work.load(ends(work)) == 0


def test_damaged_work_is_an_error_that_says_what_to_do(tmp_path):
    work = begun(tmp_path / "out")
    (work.folder / "rank-0-of-1.state").write_bytes(b"ARROW1 and no more")
    with (
        pytest.raises(StoreError, match=r"damaged.*\n.*Remove the folder .*out\.partial and give"),
        Work(tmp_path / "out", REQUEST),
    ):
        pass
    with Work(tmp_path / "out", REQUEST, overwrite=True) as work:
        assert work.load(ends(work)) == 0
