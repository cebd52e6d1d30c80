"""Checkpoints: one as a file, a folder of them, and what faults leave."""

import errno
import io
import math
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deltacell.base.errors import StoreError
from deltacell.profile.record import Reached, Status
from deltacell.train.checkpoints import Checkpoints, plain_state, read_checkpoint, write_checkpoint

STATE = {"weights": {"a": torch.arange(6.0).reshape(2, 3)}, "seed": 7, "list": [1, [None]]}


class Touches:
    """What makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class TestAFile:
    @pytest.fixture
    def file(self, tmp_path):
        file = tmp_path / "a.ckpt"
        write_checkpoint(file, STATE, step=8, epoch=1, metrics={"pearson": 0.5})
        read = read_checkpoint(file)
        assert (read["step"], read["epoch"], read["metric"]) == (8, 1, 0.5)
        return file

    def test_ordered_dicts_and_parameters_become_plain(self):
        plain = plain_state({"a": OrderedDict(x=nn.Parameter(torch.ones(2)))})
        assert (type(plain["a"]), type(plain["a"]["x"])) == (dict, torch.Tensor)

    @pytest.mark.parametrize(
        "value",
        [np.float64(1.0), np.zeros(2), Status.failed, b"x", {1}, nn.Linear(1, 1), len, {1.5: 1}],
    )
    def test_a_value_that_cannot_be_saved_is_refused_with_its_key(self, tmp_path, value, refused):
        state = {"loop": {"rows": [0, {"x": value}]}}
        given = {"step": 1, "epoch": 0, "metrics": {}}
        error = refused("not-plain", write_checkpoint, tmp_path / "a", state, **given)
        assert error.fields["key"] == "loop.rows[1].x"

    def test_nothing_in_a_file_is_run(self, tmp_path, file, refused):
        payload = torch.load(file, weights_only=True)
        payload["state"]["odd"] = Fraction(1, 2)
        torch.save(payload, file)
        # Others may have allowed PyTorch to read this.
        with torch.serialization.safe_globals([Fraction]):
            refused("unsafe-checkpoint", read_checkpoint, file)
        payload["state"]["odd"] = Touches(tmp_path / "made")
        torch.save(payload, file)
        refused("unsafe-checkpoint", read_checkpoint, file)
        for protocol in (2, 4, 5):
            file.write_bytes(pickle.dumps(payload, protocol=protocol))
            refused("damaged-checkpoint", read_checkpoint, file)
        assert not (tmp_path / "made").exists()

    def test_a_flipped_bit_that_pytorch_reads_and_other_files_are_refused(self, file, refused):
        data = bytearray(file.read_bytes())
        data[data.index(STATE["weights"]["a"].numpy().tobytes())] ^= 1
        assert torch.load(io.BytesIO(data), weights_only=True)
        file.write_bytes(data)
        refused("damaged-checkpoint", read_checkpoint, file)
        payload = torch.load(file, weights_only=True)
        others = [{"state": {}}, [1], torch.zeros(2), {"deltacell_checkpoint": 1}]
        for other in (*others, {**payload, "deltacell_checkpoint": 2}):
            torch.save(other, file)
            refused("not-a-checkpoint", read_checkpoint, file)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme.txt", "x")
        for rubbish in (file.read_bytes(), b"", b"PK\x03\x04", b"some text", b"\x80"):
            file.write_bytes(rubbish)
            refused("damaged-checkpoint", read_checkpoint, file)


def state(step):
    return {"step": step, "weights": torch.full((40,), float(step))}


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def steps(checkpoints):
    return [one.step for one in checkpoints.kept]


def assert_whole(folder, *, lasts):
    """Every checkpoint is whole, and the last is one of these steps."""
    again = Checkpoints(folder)
    for one in again.kept:
        assert again.load(one.file)["step"] == one.step
    assert (None if again.last is None else again.last.step) in lasts
    return again


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def saved(folder):
    """Steps 10 (the best), 20 and 30."""
    checkpoints = Checkpoints(folder)
    for step, metric in ((10, 0.9), (20, 0.1), (30, 0.2)):
        checkpoints.save(state(step), step=step, epoch=step // 10, metrics={"pearson": metric})
    return checkpoints


class TestSavingAndLoading:
    def test_the_record_has_step_file_and_value_of_the_last_and_the_best(self, saved, folder):
        saved.save(state(40), step=40, epoch=4, metrics={"pearson": np.float32(0.5)})
        common = {"metric": "validation_pearson"}
        assert saved.reached() == {
            "best": Reached(epoch=1, step=10, file="step-00000010.ckpt", value=0.9, **common),
            "last": Reached(epoch=4, step=40, file="step-00000040.ckpt", value=0.5, **common),
            "best_by_others": (),
        }
        assert Checkpoints(folder).kept == saved.kept
        saved.save(state(50), step=50, epoch=5, metrics={"pearson": math.nan})
        assert saved.reached()["last"].metric is None
        assert steps(saved) == [10, 40, 50]

    @pytest.mark.parametrize("second", [None, 0.3])
    def test_a_step_that_is_saved_again_when_it_is_validated(self, saved, folder, second):
        saved.save(state(40), step=40, epoch=4)
        saved.save(state(40), step=40, epoch=4, metrics={"pearson": second})
        assert steps(saved).count(40) == 1
        assert saved.last.value == second
        assert saved.best.value == 0.9
        assert_whole(folder, lasts=[40])

    def test_by_name_and_files_of_others_are_left_alone(self, saved, folder, refused):
        assert saved.load("step-00000020.ckpt")["step"] == 20
        assert (saved.load("best")["step"], saved.load()["step"]) == (10, 30)
        for which in ("step-00000099.ckpt", "", "../run.json", "Best"):
            refused("no-checkpoint", saved.load, which)
        refused("no-checkpoint", Checkpoints(folder.parent / "none").load)
        others = {"notes.txt", "step-1.ckpt", "mine-step-00000001.ckpt", "step-00000010.txt"}
        for name in others:
            (folder / name).write_text("x")
        saved.save(state(123_456_789), step=123_456_789, epoch=4)
        assert others < set(names_in(folder))
        assert Checkpoints(folder).load("step-123456789.ckpt")["step"] == 123_456_789

    @pytest.mark.parametrize("damage", ["middle", "cut", "empty", "another", "folder"])
    def test_a_damaged_one_is_named_and_an_earlier_offered(self, saved, folder, damage, refused):
        file = folder / "step-00000030.ckpt"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.unlink()
        if damage == "another":
            shutil.copy(file.with_name("step-00000020.ckpt"), file)
        elif damage == "folder":
            file.mkdir()
        else:
            file.write_bytes({"middle": data, "cut": data[:-100], "empty": b""}[damage])
        read = "unreadable" if damage == "folder" else "damaged"
        error = refused(f"{read}-checkpoint", Checkpoints(folder).load)
        assert error.where == file
        assert "--from step-00000020.ckpt" in error.fix
        assert Checkpoints(folder).load("step-00000020.ckpt")["step"] == 20
        (folder / "step-00000010.ckpt").write_bytes(b"x")
        # An earlier one is not answered with a later one.
        assert "--from" not in refused("damaged-checkpoint", Checkpoints(folder).load, "best").fix

    def test_checkpoints_of_later_steps_are_given_up_and_stay_if_they_cannot_be_removed(
        self, saved, folder, monkeypatch, refused
    ):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        before = saved.kept
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", full)
            with pytest.raises(OSError, match="No space"):
                saved.continue_from("step-00000010.ckpt")
        saved.continue_from("last")
        assert Checkpoints(folder).kept == saved.kept == before
        saved.continue_from("step-00000020.ckpt")
        assert names_in(folder) == ["step-00000010.ckpt", "step-00000020.ckpt"]
        assert assert_whole(folder, lasts=[20]).best.step == 10
        saved.save(state(30), step=30, epoch=3)
        assert_whole(folder, lasts=[30])


def watch_disk(patch, before=lambda number, name: None, after=lambda number, name: None):
    """Call `before` and `after` at everything that changes names on the disk; return a list."""
    calls, quiet = [], []

    def watched(name, function):
        def change(*given, **named):
            mode = named.get("mode", given[1] if name == "open" and len(given) > 1 else "r")
            if quiet or (name == "open" and "w" not in mode):
                return function(*given, **named)
            calls.append(name)
            quiet.append("what is done here is not watched")
            try:
                before(len(calls), name)
                result = function(*given, **named)
                after(len(calls), name)
            finally:
                quiet.clear()
            return WatchedFile(result) if name == "open" else result

        return change

    class WatchedFile:
        def __init__(self, file):
            self.file, self.write = file, watched("write", self.write_through)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write_through(self, data):
            self.file.write(data)
            self.file.flush()

    for owner, names in ((os, ("fsync", "replace", "unlink", "mkdir")), (Path, ("open",))):
        for name in names:
            patch.setattr(owner, name, watched(name, getattr(owner, name)))
    return calls


def prepared(folder, earlier):
    """A folder with as many checkpoints as given, of steps 10, 20, ..."""
    folder.parent.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder)
    for step in range(10, 10 * earlier + 1, 10):
        checkpoints.save(state(step), step=step, epoch=0, metrics={"pearson": -float(step)})
    return checkpoints


class TestFaults:
    @pytest.mark.parametrize("earlier", [0, 1, 4])
    def test_a_disk_that_fills_up_anywhere_keeps_the_one_before(self, tmp_path, earlier):
        before, new = 10 * earlier or None, 10 * earlier + 10
        prepared(tmp_path / "0" / "checkpoints", earlier)
        at, failed, hit = 0, 0, ""
        while hit is not None:
            at += 1
            shutil.copytree(tmp_path / "0", tmp_path / str(at))
            folder = tmp_path / str(at) / "checkpoints"
            checkpoints = Checkpoints(folder)

            def fill(number, name, at=at):
                if number == at:
                    raise OSError(errno.ENOSPC, "No space left on device")

            error = None
            with pytest.MonkeyPatch.context() as patch:
                calls = watch_disk(patch, before=fill)
                try:
                    checkpoints.save(state(new), step=new, epoch=1)
                except StoreError as raised:
                    error = raised
            hit = calls[at - 1] if len(calls) >= at else None
            if error is None:
                # Only what comes after the rename, or was not needed, may fail without a word.
                assert hit in (None, "fsync", "unlink", "mkdir")
                assert_whole(folder, lasts=[new])
            else:
                failed += 1
                assert error.code == "not-written"
                assert_whole(folder, lasts=[before])
                left = names_in(folder) if folder.exists() else []
                named = [one.file for one in checkpoints.kept]
                assert left == named
            # The next one finds nothing in its way and leaves nothing behind.
            checkpoints.save(state(new + 10), step=new + 10, epoch=1)
            again = assert_whole(folder, lasts=[new + 10])
            assert names_in(folder) == [one.file for one in again.kept]
        assert failed >= 4

    @pytest.mark.parametrize("earlier", [0, 1, 4])
    def test_a_kill_anywhere_leaves_whole_ones(self, tmp_path, earlier):
        before, new = 10 * earlier or None, 10 * earlier + 10
        checkpoints = prepared(tmp_path / "run" / "checkpoints", earlier)
        pictures = []

        def take(number, name):
            # What is on the disk between two changes is all that a kill there would leave.
            if checkpoints.folder.exists():
                pictures.append(tmp_path / f"picture{number}" / "checkpoints")
                shutil.copytree(checkpoints.folder, pictures[-1])

        with pytest.MonkeyPatch.context() as patch:
            calls = watch_disk(patch, after=take)
            checkpoints.save(state(new), step=new, epoch=1)
        # Only after the checkpoint is in place is an old one deleted.
        file = ["open", "write", "fsync", "replace", "fsync"]
        assert calls == ["mkdir", *file, *["unlink"] * (earlier == 4)]
        lasts = []
        for picture in pictures:
            again = assert_whole(picture, lasts=[before, new])
            lasts.append(again.last and again.last.step)
            # When it continues from there, the step is repeated, and what the kill left is gone.
            again.save(state(new), step=new, epoch=1)
            assert_whole(picture, lasts=[new])
            assert names_in(picture) == [one.file for one in again.kept]
        # Never back to the one before, once the new one is the last.
        assert lasts == sorted(lasts, key=lambda last: last == new)
        assert set(lasts) == {before, new}


def test_the_best_by_each_metric_is_kept_and_the_first_one_leads(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, best_by=("mse", "pearson"))
    steps = {10: (0.9, 3.0), 20: (0.5, 1.0), 30: (0.7, 2.0), 40: (math.nan, math.nan)}
    for step, (pearson, mse) in steps.items():
        metrics = {"pearson": pearson, "mse": mse, "loss": 1.0}
        checkpoints.save(state(step), step=step, epoch=step // 10, metrics=metrics)
    for read in (checkpoints, Checkpoints(tmp_path)):
        assert [checkpoint.step for checkpoint in read.kept] == [10, 20, 40]
        assert read.best is not None
        assert (read.best.step, read.best.metric, read.best.value) == (20, "validation_mse", 1.0)
        found = {name: checkpoint.step for name, checkpoint in read.best_by_metric.items()}
        assert found == {"mse": 20, "pearson": 10}
        (other,) = read.reached()["best_by_others"]
        assert (other.step, other.metric, other.value) == (10, "validation_pearson", 0.9)
    with pytest.raises(StoreError):
        checkpoints.load("best-loss")
    assert checkpoints.load("best")["step"] == checkpoints.load("best-mse")["step"]
    assert checkpoints.load("best-pearson")["step"] == 10
