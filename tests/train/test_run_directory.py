"""The directory of a run: its lock, record, sealed config and metrics, and what a kill leaves."""

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from deltacell.base import files
from deltacell.profile.record import CellFacts, Status, read_run, write_run
from deltacell.screen import Split
from deltacell.train import run_config, run_directory
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import load_data
from deltacell.train.loaded_runs import load_run
from deltacell.train.run import train
from deltacell.train.run_config import read_config, resumed_config
from deltacell.train.run_directory import (
    COLUMNS,
    commit,
    create_run,
    new_path,
    opened,
    write_metrics,
)

CONFIG = Config(name="demo", seed=3, mode="step", data=DataConfig(synthetic="demo"))


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A run as it was created, which is also what a kill leaves of it."""
    monkeypatch.setattr(run_directory, "commit", lambda: None)
    create_run(tmp_path / "runs" / "demo", CONFIG, ["deltacell", "train"])
    return tmp_path / "runs" / "demo"


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def open_and_close(path):
    with opened(path):
        pass


class TestCreating:
    def test_the_record_and_the_config_are_there_at_once(self, path):
        record = read_run(path)
        assert (record.status, record.name, record.seed) == (Status.running, "demo", 3)
        assert (record.mode, record.command) == ("step", ("deltacell", "train"))
        assert record.versions["torch"] == torch.__version__
        (attempt,) = record.attempts
        assert (attempt.status, attempt.from_step, attempt.world_size) == (Status.running, 0, 1)
        assert read_config(path) == dataclasses.replace(CONFIG, directory=str(path))

    def test_the_record_names_the_build_of_pytorch(self, tmp_path, monkeypatch):
        """The metadata of a wheel has the version without its build."""
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
        create_run(tmp_path / "run", CONFIG)
        assert read_run(tmp_path / "run").versions["torch"] == "2.13.0+cu130"

    def test_existing_runs_and_files_are_never_written_over(
        self, path, tmp_path, monkeypatch, refused
    ):
        before = (path / "run.json").read_bytes()
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.yaml").write_text("x")
        (tmp_path / "file").write_text("x")
        for place, code in (
            (path, "run-exists"),
            (tmp_path / "mine", "exists"),
            (tmp_path / "file", "exists"),
            (tmp_path / "file" / "b", "not-written"),
        ):
            refused(code, create_run, place, CONFIG)
        assert (path / "run.json").read_bytes() == before
        assert names_in(tmp_path / "mine") == ["config.yaml"]
        # A path of no name of its own is never one that is there.
        monkeypatch.chdir(tmp_path)
        for _ in range(3):
            new = new_path(CONFIG)
            assert new.as_posix().startswith("runs/demo-seed3-")
            new.mkdir()


class TestStatus:
    def test_an_update_is_on_the_disk_or_nowhere_wherever_the_process_moves(
        self,
        path,
        monkeypatch,
        refused,
    ):
        monkeypatch.chdir(path.parent)
        with opened(Path("demo"), running=True) as run:
            monkeypatch.chdir("/")
            run.update(cell=CellFacts(checksum="c", n_genes=3))
            assert read_run(path) == run.record
            before = (path / "run.json").read_bytes()
            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", full)
                refused("not-written", run.update, limits="x")
                refused("not-written", run.end, Status.finished)
            assert (path / "run.json").read_bytes() == before
            assert run.record.limits is None

    @pytest.mark.parametrize(
        ("error", "status", "said"),
        [
            (ValueError("shapes differ"), Status.failed, "shapes differ"),
            (ValueError(), Status.failed, "ValueError"),
            (KeyboardInterrupt(), Status.interrupted, None),
            (SystemExit(3), Status.interrupted, None),
        ],
    )
    def test_an_error_that_leaves_the_block_is_recorded(self, path, error, status, said):
        with pytest.raises(type(error)), opened(path, running=True):
            raise error
        assert (read_run(path).status, read_run(path).error) == (status, said)

    def test_a_full_disk_at_the_end_does_not_hide_an_error(self, path, monkeypatch):
        def fail():
            with opened(path, running=True):
                monkeypatch.setattr(os, "replace", full)
                raise ValueError("shapes differ")

        with pytest.raises(ValueError, match="shapes differ"):
            fail()

    def test_a_resumed_run_counts_its_attempts(self, path, tmp_path, refused):
        with opened(path) as run:
            run.end(Status.failed, error="NaN")
        with opened(path) as again:
            again.resume(dataclasses.replace(CONFIG, name="other"), from_step=40, world_size=2)
            assert read_config(path).name == "other"
            record = read_run(path)
            assert (record.status, record.error, record.ended) == (Status.running, None, None)
            again.end(Status.finished, limits="x")
        record = read_run(path)
        assert [one.status for one in record.attempts] == [Status.failed, Status.finished]
        assert [(one.from_step, one.world_size) for one in record.attempts] == [(0, 1), (40, 2)]
        assert (record.status, record.limits) == (Status.finished, "x")
        assert record.ended == record.attempts[1].ended is not None
        (path / "run.json").write_bytes((path / "run.json").read_bytes()[:50])
        for wrong in (tmp_path, path):
            refused(("not-a-run", "damaged"), open_and_close, wrong)


class TestTwoProcesses:
    def test_the_second_is_refused_and_a_kill_lets_it_in(self, path, refused):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            with opened(path, running=True):
                os.write(tell, b"x")
                signal.pause()
        try:
            assert os.read(ready, 1) == b"x"
            refused("locked", open_and_close, path)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        with opened(path) as run:
            refused("locked", open_and_close, path)
            run.resume(CONFIG, from_step=7)
            killed, current = read_run(path).attempts
            assert (killed.status, killed.ended) == (Status.interrupted, None)
            assert (current.status, current.from_step) == (Status.running, 7)

    def test_a_file_system_without_locks(self, path, monkeypatch):
        monkeypatch.setattr(files.fcntl, "flock", lambda *_: full())
        with pytest.warns(UserWarning, match="no locks"), opened(path):
            pass


def test_the_commit_is_that_of_the_checkout(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", tmp_path, *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package, installed = tmp_path / "src" / "package", tmp_path / "src" / "venv" / "deltacell"
    for folder in (package, installed):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    for words in ("init -q", "add src/package", "commit -qm first"):
        git(*words.split())
    head = git("rev-parse", "HEAD")
    assert commit(package) == head
    (package / "__init__.py").write_text("x = 1")
    assert commit(package) == f"{head}-dirty"
    # A package that is installed below another checkout is not part of it.
    assert commit(installed) is None
    monkeypatch.setenv("PATH", "")
    assert commit(package) is None


class TestTheConfig:
    def test_only_what_does_not_change_what_is_learned_may_differ(
        self,
        trained,
        monkeypatch,
        refused,
    ):
        found = resumed_config(trained, ["trainer.epochs=30", "profiler.window=[1,2,3,4]"])
        assert (found.trainer.epochs, found.profiler.window) == (30, [1, 2, 3, 4])
        monkeypatch.setattr(run_config, "read_config", lambda path: found)
        for override, code in (
            *((f"{key}=1", "cannot-change") for key in ("optimizer.lr", "seed", "trainer.ema")),
            *((key, "cannot-change") for key in ("trainer.epochs", "~trainer.epochs")),
            ("trainer.epochs.more=1", "cannot-change"),
            ("trainer.epochs=many", "wrong-type"),
            ("profiler.windw=[1,1,1,1]", "unknown-key"),
            ("profiler.window=[1", "unreadable-override"),
            ("trainer.devices=-1", "out-of-range"),
        ):
            refused(code, resumed_config, trained, [override])

    def test_an_edit_or_damage_is_noticed_and_a_deleted_one_restored(self, copy, path, refused):
        before, file = resumed_config(copy), copy / "config.yaml"
        text = file.read_text()
        lines = text.splitlines(keepends=True)
        damaged = [text.replace(key, key[:-1] + "4") for key in ("epochs: 2", "hidden: 8")]
        damaged += ["".join(lines[:kept]) for kept in range(0, len(lines), 7)]
        for content in (*(one.encode() for one in damaged), b"name: \xff\n"):
            assert content != text.encode()
            file.write_bytes(content)
            refused("broken-seal", resumed_config, copy)
        file.unlink()
        assert resumed_config(copy) == before
        (path / "config.yaml").unlink()
        refused("no-config", resumed_config, path)


def edited(path, old, new):
    """Change a config as a person would who also takes off the seal."""
    file = path / "config.yaml"
    text = "".join(file.read_text().splitlines(keepends=True)[:-1])
    assert old in text
    file.write_text(text.replace(old, new) + "# seal: none\n")


def resume(path):
    train(resumed_config(path, ["trainer.epochs=3"]), resume=path)


class TestTheMeaningOfACheckpoint:
    @pytest.mark.parametrize(
        ("old", "new"),
        [("lr: ", "lr: 1"), ("heads: 4", "heads: 2"), ("  seed: 3", "  seed: 4")],
    )
    def test_another_config_is_refused_whoever_asks(self, copy, old, new, refused):
        edited(copy, old, new)
        for ask in (load_run, resume):
            refused("other-config", ask, copy)

    def test_a_run_keeps_its_split(self, copy, trained, monkeypatch, refused):
        kept = load_run(trained).data.split
        with monkeypatch.context() as patch:
            patch.setattr("deltacell.train.data.make_split", full)
            assert load_run(copy).data.split.equals(kept)
        Split.random(load_run(copy).data.screen, seed=7).save(copy / "split", overwrite=True)
        for ask in (load_run, resume):
            refused("other-split", ask, copy)
        shutil.rmtree(copy / "split")
        for ask in (load_run, resume):
            refused("no-split", ask, copy)


class TestAKillAtTheEdges:
    def test_after_its_last_checkpoint_a_run_is_finished(self, copy):
        whole = read_run(copy)
        running = dataclasses.replace(whole.attempts[-1], status=Status.running, ended=None)
        killed = dataclasses.replace(
            whole,
            status=Status.running,
            ended=None,
            best=None,
            attempts=(running,),
        )
        write_run(copy, killed)
        assert load_run(copy).is_finished
        outcome = train(resumed_config(copy), resume=copy)
        assert (outcome.signal, read_run(copy).status) == (0, Status.finished)
        assert read_run(copy).best == whole.best
        write_run(copy, killed)
        edited(copy, "epochs: 2", "epochs: 3")
        assert not load_run(copy).is_finished
        assert read_run(copy).status is Status.running
        # What may change may be edited too.
        train(resumed_config(copy), resume=copy)
        assert load_run(copy).is_finished

    @pytest.mark.parametrize("again", ["start", "resume"])
    def test_before_its_first_checkpoint_a_run_starts_from_the_beginning(
        self,
        small,
        trained,
        tmp_path,
        again,
        refused,
    ):
        config, path = small("split.seed=3"), tmp_path / "run"
        # As a kill leaves it: the record says running, and there is no checkpoint.
        create_run(path, config, split=load_data(config).split)
        refused("run-exists", train, dataclasses.replace(config, seed=1))
        if again == "resume":
            train(resumed_config(path), resume=path)
        else:
            train(config)
        found, expected = (
            Checkpoints(one / "checkpoints").load("last")["model"] for one in (path, trained)
        )
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_metrics_are_written_for_people_with_every_column(tmp_path):
    write_metrics(tmp_path, [{"epoch": 1, "lr": 0.1}, {"epoch": 2, "train_new": 5.0}])
    first, *rows = (line.split(",") for line in (tmp_path / "metrics.csv").read_text().split())
    assert first == [*COLUMNS, "train_new"]
    assert rows[0] == ["1", "", "", "", "0.1", *[""] * 6]
    assert rows[1] == ["2", *[""] * 9, "5.0"]
