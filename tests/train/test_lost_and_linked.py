"""A run that another process took over, and one with symbolic links, as it may be received."""

import os
import shutil
from pathlib import Path

import pytest

from deltacell.base.files import locked, new_file
from deltacell.cell import Cell
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config
from deltacell.train.run_directory import LOCK, opened
from deltacell.train.task import Task


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_lock_is_never_written_through_a_link_or_into_anything_but_a_file(tmp_path, refused):
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "new.txt")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text("kept")

    def lock(name):
        with locked(tmp_path / name, whose="run"):
            pass

    for name in ("link", "dangling"):
        refused("link", lock, name)
    refused(("not-a-file", "not-written"), lock, "pipe")
    lock("empty")
    assert (victim.read_text(), (tmp_path / "empty").read_text()) == ("years of work", "kept")
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("name", [LOCK, "checkpoints", "phases", "config.yaml"])
def test_a_received_run_with_a_link_is_not_resumed(copy, tmp_path, name, refused):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim"
    place = copy / name
    if place.is_dir():
        shutil.copytree(place, victim)
        shutil.rmtree(place)
    else:
        place.rename(victim)
    place.symlink_to(victim)
    before = contents(elsewhere)
    config = resumed_config(copy, ["trainer.epochs=3"])
    refused("link", train, config, resume=copy)
    assert contents(elsewhere) == before


def test_a_process_that_lost_its_run_writes_nothing_more(small, tmp_path, monkeypatch, refused):
    """As after SIGSTOP: the lock file is removed, and another process trains to the end."""
    path = tmp_path / "run"
    config = small("trainer.epochs=3", "trainer.checkpoint_every_steps=2")
    whole = contents(train(small("trainer.epochs=3", run="whole")).path / "checkpoints")
    forward = Task.forward
    batches = iter(range(100))
    seen: dict[str, bytes] = {}

    def sleep(task, prepared):
        losses = forward(task, prepared)
        if next(batches) == 11:
            monkeypatch.setattr(Task, "forward", forward)
            (path / LOCK).unlink()
            with opened(path) as other:
                other.end(Status.interrupted)
            train(resumed_config(path), resume=path)
            seen.update(contents(path))
        return losses

    monkeypatch.setattr(Task, "forward", sleep)
    refused("lost-lock", train, config)
    assert contents(path) == seen
    assert seen
    assert sorted(name for name in seen if name.endswith(".ckpt"))[-1].endswith(sorted(whole)[-1])
    assert read_run(path / RUN_FILE).status is Status.finished


def test_a_file_is_not_put_in_place_if_the_lock_was_lost_while_it_was_written(tmp_path, refused):
    folder = tmp_path / "run"
    folder.mkdir()
    Cell.synthetic("demo").subset(range(5)).save(folder / "cell")
    (folder / "file").write_text("old")
    (tmp_path / "elsewhere").write_text("old")
    before = contents(folder)

    def write(name):
        with new_file(tmp_path / name) as temporary:
            temporary.write_text("new")

    def lose_and_write(name):
        with locked(folder / LOCK, whose="run"):
            (folder / LOCK).unlink()
            write(name)

    def lose_and_save():
        with locked(folder / LOCK, whose="run"):
            cell = Cell.synthetic("demo").subset(range(6))
            (folder / LOCK).unlink()
            cell.save(folder / "cell", overwrite=True)

    refused("lost-lock", lose_and_write, "run/file")
    refused("lost-lock", lose_and_save)
    assert contents(folder) == before
    # Neither other folders nor later writes are concerned.
    lose_and_write("elsewhere")
    write("run/file")
    assert (tmp_path / "elsewhere").read_text() == (folder / "file").read_text() == "new"


def test_a_lock_that_was_replaced_is_lost(tmp_path, refused):
    with locked(tmp_path / "lock", whose="run") as lock:
        lock.check()
        (tmp_path / "lock").unlink()
        refused("lost-lock", lock.check)
        (tmp_path / "lock").write_text("")
        refused("lost-lock", lock.check)
