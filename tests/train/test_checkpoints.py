from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.errors import InputError, StoreError
from deltacell.files import seal_of
from deltacell.profile.record import Reached
from deltacell.store import sha256_of_file
from deltacell.train.checkpoints import Checkpoints, read_checkpoint


def state(step):
    return {"step": step, "weights": torch.full((40,), float(step))}


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def steps(checkpoints):
    return [one.step for one in checkpoints.kept]


def assert_whole(folder, *, lasts):
    """Every checkpoint of the index is there and whole, and the last is one of these steps."""
    again = Checkpoints(folder)
    for one in again.kept:
        assert sha256_of_file(folder / one.file) == one.sha256
        assert again.load(one.file)["step"] == one.step
    assert (None if again.last is None else again.last.step) in lasts
    if again.last is not None:
        assert torch.equal(again.load()["weights"], state(again.last.step)["weights"])
    return again


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def saved(folder):
    """Steps 10 (the best), 20 and 30."""
    folder.parent.mkdir()
    checkpoints = Checkpoints(folder)
    for step, metric in ((10, 0.9), (20, 0.1), (30, 0.2)):
        checkpoints.save(state(step), step=step, epoch=step // 10, metric=metric)
    return checkpoints


class TestSaving:
    def test_the_last_ones_and_the_best_are_kept(self, saved, folder):
        assert steps(saved) == [10, 20, 30]
        saved.save(state(40), step=40, epoch=4, metric=0.3)
        assert steps(saved) == [10, 30, 40]
        saved.save(state(50), step=50, epoch=5, metric=0.95)
        assert steps(saved) == [40, 50]
        assert names_in(folder) == ["index.json", "step-00000040.ckpt", "step-00000050.ckpt"]

    def test_what_is_kept_is_the_same_for_whoever_opens_it(self, saved, folder):
        again = Checkpoints(folder)
        assert again.kept == saved.kept
        assert (again.best.step, again.last.step) == (10, 30)
        assert again.best == saved.best

    def test_one_may_be_enough(self, folder):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder, keep=1)
        for step in (1, 2, 3):
            checkpoints.save(state(step), step=step, epoch=0)
        assert names_in(folder) == ["index.json", "step-00000003.ckpt"]
        with pytest.raises(InputError, match=r"trainer\.keep is 0"):
            Checkpoints(folder, keep=0)

    def test_what_it_says_of_one(self, saved):
        one = saved.save(state(40), step=40, epoch=4, metric=np.float32(0.5))
        assert (one.file, one.step, one.epoch, one.metric) == ("step-00000040.ckpt", 40, 4, 0.5)
        assert type(one.metric) is float
        assert one.reached("validation_pearson") == Reached(
            epoch=4, step=40, file="step-00000040.ckpt", metric="validation_pearson", value=0.5
        )
        other = saved.save(state(50), step=50, epoch=5)
        assert other.reached("validation_pearson").metric is None

    def test_a_state_that_cannot_be_saved_changes_nothing(self, saved, folder):
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        with pytest.raises(InputError, match=r"'rng' of a checkpoint's state is a numpy\.ndarray"):
            saved.save({"rng": np.zeros(2)}, step=40, epoch=4)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    def test_files_of_others_are_left_alone(self, saved, folder):
        for name in ("notes.txt", "step-1.ckpt", "mine-step-00000001.ckpt", "step-00000010.txt"):
            (folder / name).write_text("x")
        saved.save(state(40), step=40, epoch=4)
        assert {"notes.txt", "step-1.ckpt", "mine-step-00000001.ckpt"} < set(names_in(folder))

    def test_steps_beyond_eight_digits(self, folder):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder)
        checkpoints.save(state(1), step=123_456_789, epoch=0)
        assert Checkpoints(folder).load("step-123456789.ckpt")["step"] == 1


class TestTheBest:
    @pytest.mark.parametrize(("higher", "best"), [(True, 3), (False, 2)])
    def test_higher_or_lower(self, folder, higher, best):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder, keep=1, higher_is_better=higher)
        for step, metric in ((1, 0.0), (2, -2.0), (3, 0.5), (4, 0.25)):
            checkpoints.save(state(step), step=step, epoch=0, metric=metric)
        assert checkpoints.best.step == best
        assert Checkpoints(folder).load("best")["step"] == best

    def test_the_earliest_of_equals(self, folder):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder)
        for step in (1, 2):
            checkpoints.save(state(step), step=step, epoch=0, metric=0.5)
        assert checkpoints.best.step == 1

    @pytest.mark.parametrize("higher", [True, False])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
    def test_what_is_no_number_never_is(self, folder, higher, value):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder, higher_is_better=higher)
        checkpoints.save(state(1), step=1, epoch=0, metric=value)
        assert checkpoints.best is None
        checkpoints.save(state(2), step=2, epoch=0, metric=0.5)
        checkpoints.save(state(3), step=3, epoch=0, metric=value)
        assert checkpoints.best.step == 2
        assert checkpoints.last.metric is None
        assert Checkpoints(folder).best.step == 2

    def test_none_is_said(self, folder):
        folder.parent.mkdir()
        checkpoints = Checkpoints(folder)
        with pytest.raises(StoreError, match="there is no checkpoint yet"):
            checkpoints.load()
        checkpoints.save(state(1), step=1, epoch=0)
        with pytest.raises(StoreError, match="no checkpoint has a metric"):
            checkpoints.load("best")


class TestAStepThatIsSavedTwice:
    def test_the_second_takes_the_place_of_the_first(self, saved, folder):
        saved.save(state(40), step=40, epoch=4)
        saved.save(state(40), step=40, epoch=4, metric=0.3)
        assert steps(saved) == [10, 30, 40]
        assert saved.last.metric == 0.3
        assert "step-00000040.ckpt" not in names_in(folder)
        assert Checkpoints(folder).load()["step"] == 40

    def test_the_best_stays_where_the_second_was_not_measured(self, saved):
        saved.save(state(40), step=40, epoch=4, metric=0.99)
        saved.save(state(40), step=40, epoch=4)
        assert saved.best.metric == 0.99
        assert saved.last.metric is None


class TestLoading:
    def test_by_name(self, saved):
        assert saved.load("step-00000020.ckpt")["step"] == 20
        assert saved.load("best")["step"] == 10
        assert saved.load()["step"] == 30

    @pytest.mark.parametrize("which", ["step-00000099.ckpt", "", "../index.json", "Best"])
    def test_a_name_that_is_not_there_is_said_with_those_that_are(self, saved, which):
        with pytest.raises(
            StoreError,
            match=r"expected 'last', 'best' or one of: step-00000010.ckpt, step-00000020",
        ):
            saved.load(which)

    def damage_in_the_middle(file):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    def cut_off(file):
        file.write_bytes(file.read_bytes()[:-100])

    def empty(file):
        file.write_bytes(b"")

    def put_another_in_its_place(file):
        shutil.copy(file.with_name("step-00000020.ckpt"), file)

    @pytest.mark.parametrize(
        "damage", [damage_in_the_middle, cut_off, empty, put_another_in_its_place]
    )
    def test_a_damaged_one_is_named_and_the_one_before_is_offered(self, saved, folder, damage):
        damage(folder / "step-00000030.ckpt")
        with pytest.raises(StoreError, match="do not match its checksum") as error:
            Checkpoints(folder).load()
        assert error.value.where == folder / "step-00000030.ckpt"
        assert error.value.fix == (
            "The one before is whole: "
            f"deltacell train --resume {folder.parent} --from step-00000020.ckpt"
        )
        assert Checkpoints(folder).load("step-00000020.ckpt")["step"] == 20

    def test_a_missing_one_is_named_and_a_whole_one_is_offered(self, saved, folder):
        (folder / "step-00000030.ckpt").unlink()
        (folder / "step-00000020.ckpt").write_bytes(b"x")
        with pytest.raises(StoreError, match="the checkpoint is missing") as error:
            Checkpoints(folder).load()
        assert "--from step-00000010.ckpt" in error.value.fix

    def test_a_folder_in_its_place_is_said(self, saved, folder):
        (folder / "step-00000030.ckpt").unlink()
        (folder / "step-00000030.ckpt").mkdir()
        with pytest.raises(StoreError, match="cannot be read: Is a directory"):
            Checkpoints(folder).load()

    def test_no_whole_one_before_it_is_said(self, saved, folder):
        for file in folder.glob("*.ckpt"):
            file.write_bytes(b"x")
        with pytest.raises(StoreError, match="There is no whole one before it"):
            Checkpoints(folder).load()

    def test_an_earlier_one_is_not_answered_with_a_later_one(self, saved, folder):
        (folder / "step-00000010.ckpt").write_bytes(b"x")
        with pytest.raises(StoreError, match="There is no whole one before it"):
            Checkpoints(folder).load("best")

    def test_a_pickle_payload_is_refused_with_its_checksum_in_the_index_too(self, saved, folder):
        file = folder / "step-00000030.ckpt"

        class Touches:
            def __reduce__(self):
                return os.mkdir, (str(folder / "made"),)

        payload = read_checkpoint(file)
        payload["state"]["step"] = Touches()
        torch.save(payload, file)
        with pytest.raises(StoreError, match="do not match its checksum"):
            Checkpoints(folder).load()
        index = json.loads((folder / "index.json").read_text())
        index["checkpoints"][-1]["sha256"] = sha256_of_file(file)
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(StoreError, match="the index of the checkpoints is damaged"):
            Checkpoints(folder).load()
        (folder / "index.json").write_text(json.dumps(index | {"seal": seal_of(index)}))
        with pytest.raises(StoreError, match=r"refused: the file asks for \w+\.mkdir") as error:
            Checkpoints(folder).load()
        assert "--from step-00000020.ckpt" in error.value.fix
        assert not (folder / "made").exists()


class TestTheIndex:
    def test_its_form(self, saved, folder):
        index = json.loads((folder / "index.json").read_text())
        assert (index["schema"], index["best"], index["last"]) == (
            1,
            "step-00000010.ckpt",
            "step-00000030.ckpt",
        )
        assert index["checkpoints"][1] == {
            "file": "step-00000020.ckpt",
            "sha256": sha256_of_file(folder / "step-00000020.ckpt"),
            "step": 20,
            "epoch": 2,
            "metric": 0.1,
        }

    def altered(**changes):
        def alter(index):
            index["checkpoints"][1].update(changes)

        return alter

    @pytest.mark.parametrize(
        "alter",
        [
            altered(step="20"),
            altered(step=True),
            altered(epoch=2.0),
            altered(metric="high"),
            altered(sha256=None),
            altered(file=3),
            altered(file="../../secret.ckpt"),
            altered(file="/etc/passwd"),
            altered(file="step-00000030.ckpt"),
            altered(colour="blue"),
            lambda index: index["checkpoints"][1].pop("step"),
            lambda index: index.update(best="step-00000099.ckpt"),
            lambda index: index.update(best=3),
            lambda index: index.update(best=[]),
            lambda index: index.update(last="step-00000010.ckpt"),
            lambda index: index.update(checkpoints=None),
            lambda index: index.update(checkpoints=[1]),
            lambda index: index.pop("last"),
            lambda index: index.pop("schema"),
        ],
    )
    def test_values_that_are_wrong_are_said(self, saved, folder, alter):
        index = json.loads((folder / "index.json").read_text())
        alter(index)
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(StoreError, match="the index of the checkpoints is damaged"):
            Checkpoints(folder).load()

    @pytest.mark.parametrize("rubbish", [b"", b"{", b"\x00\xff", b"[]", b"3", b"null", b'"schema"'])
    def test_rubbish_is_said_and_deleting_it_makes_it_again(self, saved, folder, rubbish):
        (folder / "index.json").write_bytes(rubbish)
        with pytest.raises(StoreError, match="the index of the checkpoints is damaged") as error:
            Checkpoints(folder).load()
        assert error.value.where == folder / "index.json"
        assert error.value.fix.endswith(
            "beside it: step-00000010.ckpt, step-00000020.ckpt, step-00000030.ckpt"
        )
        (folder / "index.json").unlink()
        again = Checkpoints(folder)
        assert again.kept == saved.kept
        assert again.best == saved.best
        assert again.load()["step"] == 30

    def test_damage_to_it_while_training_is_mended_by_the_next_one(self, saved, folder):
        (folder / "index.json").write_bytes(b"rubbish")
        saved.save(state(40), step=40, epoch=4)
        assert_whole(folder, lasts=[40])

    def test_it_is_made_again_of_whole_ones_only(self, saved, folder):
        (folder / "index.json").unlink()
        file = folder / "step-00000030.ckpt"
        data = bytearray(file.read_bytes())
        data[data.index(torch.full((4,), 30.0).numpy().tobytes())] ^= 1
        file.write_bytes(data)
        assert steps(Checkpoints(folder)) == [10, 20]

    def test_another_schema_version_is_refused(self, saved, folder):
        text = (folder / "index.json").read_text().replace('"schema": 1', '"schema": 2')
        (folder / "index.json").write_text(text)
        with pytest.raises(StoreError, match="schema version 2, and this program reads 1"):
            Checkpoints(folder).load()


class TestContinuing:
    def test_those_of_later_steps_are_given_up(self, saved, folder):
        chosen = saved.continue_from("step-00000020.ckpt")
        assert chosen.step == 20
        assert names_in(folder) == ["index.json", "step-00000010.ckpt", "step-00000020.ckpt"]
        again = assert_whole(folder, lasts=[20])
        assert again.best.step == 10

    def test_the_best_may_be_given_up_too(self, saved):
        saved.save(state(40), step=40, epoch=4, metric=0.99)
        saved.continue_from("step-00000030.ckpt")
        assert saved.best.step == 30

    def test_a_step_that_is_done_again_may_be_saved_again(self, saved, folder):
        saved.continue_from("step-00000020.ckpt")
        saved.save(state(30), step=30, epoch=3)
        assert_whole(folder, lasts=[30])

    def test_from_the_last_nothing_is_given_up(self, saved):
        before = saved.kept
        assert saved.continue_from("last") == before[-1]
        assert saved.kept == before

    def test_a_full_disk_leaves_all_of_them(self, saved, folder, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        before = names_in(folder)
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(StoreError, match=r"index.*could not be written: No space left"):
            saved.continue_from("step-00000010.ckpt")
        assert names_in(folder) == before
        assert saved.last.step == 30


class Disk:
    """Everything that changes the disk, one by one: `before` and `after` are told of each."""

    def __init__(self, monkeypatch, before=None, after=None):
        self.calls = []
        self._before, self._after = before, after
        self._busy = False
        for name in ("fsync", "replace", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        opened = self._watched("open", Path.open)
        monkeypatch.setattr(Path, "open", lambda *given, **named: self._file(opened, given, named))

    def _watched(self, name, function):
        def watched(*given, **named):
            if self._busy:
                return function(*given, **named)
            self._tell(self._before, name)
            result = function(*given, **named)
            self._tell(self._after, name)
            return result

        return watched

    def _file(self, opened, given, named):
        mode = named.get("mode", given[1] if len(given) > 1 else "r")
        if self._busy or "w" not in mode:
            busy, self._busy = self._busy, True
            try:
                return opened(*given, **named)
            finally:
                self._busy = busy
        file = opened(*given, **named)
        write = file.write

        def through(data):
            written = write(data)
            file.flush()
            return written

        watched = self._watched("write", through)

        class Watched:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, data):
                return watched(data)

        return Watched()

    def _tell(self, whom, name):
        if whom is None:
            return
        self._busy = True
        try:
            self.calls.append(name)
            whom(len(self.calls), name)
        finally:
            self._busy = False


def prepared(folder, earlier):
    """A folder with as many checkpoints as given, of steps 10, 20, ..."""
    folder.parent.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder)
    for step in range(10, 10 * earlier + 1, 10):
        checkpoints.save(state(step), step=step, epoch=0, metric=-float(step))
    return checkpoints


class TestFaults:
    @pytest.mark.parametrize("earlier", [0, 1, 4])
    def test_a_disk_that_fills_up_anywhere_keeps_the_one_before(self, tmp_path, earlier):
        before, new = 10 * earlier or None, 10 * earlier + 10
        prepared(tmp_path / "0" / "checkpoints", earlier)
        at, failed = 0, 0
        while True:
            at += 1
            shutil.copytree(tmp_path / "0", tmp_path / str(at))
            folder = tmp_path / str(at) / "checkpoints"
            checkpoints = Checkpoints(folder)

            def fill(number, name, at=at):
                if number == at:
                    raise OSError(errno.ENOSPC, "No space left on device")

            with pytest.MonkeyPatch.context() as patch:
                disk = Disk(patch, before=fill)
                try:
                    checkpoints.save(state(new), step=new, epoch=1)
                    said = None
                except StoreError as error:
                    said = error
            hit = disk.calls[at - 1] if len(disk.calls) >= at else None
            if said is None:
                # Only what comes after the index, or was not needed, may fail without a word.
                assert hit in (None, "fsync", "unlink", "mkdir")
                assert_whole(folder, lasts=[new])
            else:
                failed += 1
                assert f"step {new} could not be written: No space left on device" in str(said)
                expected = f"step-{before:08d}.ckpt, is still there" if before else "no earlier one"
                assert expected in said.fix
                assert_whole(tmp_path / str(at) / "checkpoints", lasts=[before])
                assert checkpoints.last == Checkpoints(folder).last
                left = names_in(folder) if folder.exists() else []
                named = [one.file for one in checkpoints.kept]
                assert left in (sorted([*named, "index.json"]), named)
            # The next one finds nothing in its way and leaves nothing behind.
            checkpoints.save(state(new + 10), step=new + 10, epoch=1)
            again = assert_whole(folder, lasts=[new + 10])
            assert names_in(folder) == sorted([*(o.file for o in again.kept), "index.json"])
            if hit is None:
                break
        assert failed >= 8

    @pytest.mark.parametrize("earlier", [0, 1, 4])
    def test_a_kill_anywhere_leaves_an_index_of_whole_ones(self, tmp_path, earlier):
        before, new = 10 * earlier or None, 10 * earlier + 10
        checkpoints = prepared(tmp_path / "run" / "checkpoints", earlier)
        pictures = []

        def take(number, name):
            # What is on the disk between two changes is all that a kill there would leave.
            if checkpoints.folder.exists():
                pictures.append(tmp_path / f"picture{number}" / "checkpoints")
                shutil.copytree(checkpoints.folder, pictures[-1])

        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, after=take)
            checkpoints.save(state(new), step=new, epoch=1)
        assert len(pictures) > 10
        lasts = []
        for picture in pictures:
            again = assert_whole(picture, lasts=[before, new])
            lasts.append(again.last and again.last.step)
            # Going on from there, the step is done again, and what the kill left is gone.
            again.save(state(new), step=new, epoch=1)
            assert_whole(picture, lasts=[new])
            assert names_in(picture) == sorted([*(o.file for o in again.kept), "index.json"])
        # Never back to the one before, once the new one is the last.
        assert lasts == sorted(lasts, key=lambda last: last == new)
        assert set(lasts) == {before, new}

    def test_a_real_limit_on_the_size_of_files(self, saved, folder):
        size = (folder / "step-00000030.ckpt").stat().st_size
        for limit in (0, 1, 64, size // 2, size - 1):
            with files_up_to(limit), pytest.raises(StoreError, match="File too large") as error:
                saved.save(state(40), step=40, epoch=4)
            assert "The one before, step-00000030.ckpt, is still there" in error.value.fix
            assert_whole(folder, lasts=[30])
            assert len(names_in(folder)) == 4

    def test_what_pytorch_cannot_do_is_not_taken_for_a_full_disk(self, saved, monkeypatch):
        def broken(*_):
            raise RuntimeError("something else")

        monkeypatch.setattr(torch, "save", broken)
        with pytest.raises(RuntimeError, match="something else"):
            saved.save(state(40), step=40, epoch=4)
        assert len(names_in(saved.folder)) == 4

    def test_a_run_that_is_gone_is_said(self, saved, folder):
        shutil.rmtree(folder.parent)
        with pytest.raises(StoreError, match="could not be written: No such file"):
            saved.save(state(40), step=40, epoch=4)


@contextmanager
def files_up_to(limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
