"""The directory of a run: its lock, record, sealed config and metrics, and what a kill leaves."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltacell
from deltacell.errors import InputError, StoreError
from deltacell.profile.record import CellFacts, Status, read_metrics, read_run, write_run
from deltacell.screen import Split
from deltacell.train import run_directory
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, DataConfig, Mode, TrainerConfig
from deltacell.train.data import load_data
from deltacell.train.loaded_run import load_run
from deltacell.train.run import resume, train
from deltacell.train.run_directory import (
    COLUMNS,
    MetricsFile,
    RunDirectory,
    commit,
    new_path,
    read_config,
    resumed_config,
)

CONFIG = Config(name="demo", seed=3, mode=Mode.step, data=DataConfig(synthetic="demo"))


@pytest.fixture
def no_git(monkeypatch):
    monkeypatch.setattr(run_directory, "commit", lambda: None)


@pytest.fixture
def path(tmp_path, no_git):
    return tmp_path / "runs" / "demo"


@pytest.fixture
def run(path):
    with RunDirectory.create(path, CONFIG, ["deltacell", "train"]) as run:
        yield run


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


class TestCreating:
    def test_the_record_and_the_config_are_there_at_once(self, run, path):
        record = read_run(path)
        assert record == run.record
        assert (record.status, record.name, record.seed) == (Status.running, "demo", 3)
        assert (record.mode, record.command) == ("step", ("deltacell", "train"))
        assert record.versions["torch"] == torch.__version__
        (attempt,) = record.attempts
        assert (attempt.status, attempt.from_step, attempt.world_size) == (Status.running, 0, 1)
        assert read_config(path) == CONFIG
        run.save_config(changed := Config(name="other", data=DataConfig(synthetic="demo")))
        assert read_config(path) == changed

    def test_processes_are_those_of_the_config_or_as_given(self, tmp_path, no_git):
        config = Config(trainer=TrainerConfig(devices=2, nodes=3))
        for name, given_, size in (("a", {}, 6), ("b", {"world_size": 4}, 4)):
            with RunDirectory.create(tmp_path / name, config, **given_) as run:
                assert run.record.world_size == run.record.attempts[0].world_size == size

    def test_a_relative_path_stays_right_when_the_process_moves(
        self, tmp_path, monkeypatch, no_git
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        with RunDirectory.create("run", CONFIG) as run:
            monkeypatch.chdir("/")
            run.update(limits="x")
        assert read_run(tmp_path / "run").limits == "x"

    def test_what_is_there_is_never_written_over(self, run, path, tmp_path):
        run.end(Status.finished)
        run.close()
        before = (path / "run.json").read_bytes()
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.yaml").write_text("x")
        (tmp_path / "file").write_text("x")
        for place, code in (
            (path, "run-exists"),
            (tmp_path / "mine", "not-empty"),
            (tmp_path / "file", "not-a-directory"),
            (tmp_path / "file" / "b", "not-written"),
        ):
            with pytest.raises(InputError) as caught:
                RunDirectory.create(place, CONFIG)
            assert caught.value.code == code
        assert (path / "run.json").read_bytes() == before
        assert names_in(tmp_path / "mine") == ["config.yaml"]

    @pytest.mark.parametrize(
        ("at", "call"), [("fsync", 1), ("fsync", 3), ("replace", 1), ("replace", 2), ("mkdir", 1)]
    )
    def test_a_full_disk_leaves_nothing(self, tmp_path, path, monkeypatch, at, call):
        calls, real = [], getattr(os, at)

        def sometimes(*given_, **named):
            calls.append(given_)
            return full() if len(calls) == call else real(*given_, **named)

        monkeypatch.setattr(os, at, sometimes)
        with pytest.raises(StoreError, match="No space left"):
            RunDirectory.create(path, CONFIG)
        assert names_in(tmp_path) == []

    def test_the_faster_of_two_wins(self, path, monkeypatch):
        check, other = run_directory._refuse_to_clobber, []

        def then_another_is_faster(folder):
            check(folder)
            if not other:
                other.append(True)
                with RunDirectory.create(path, Config(name="faster")) as run:
                    run.end(Status.finished)

        monkeypatch.setattr(run_directory, "_refuse_to_clobber", then_another_is_faster)
        with pytest.raises(InputError) as caught:
            RunDirectory.create(path, CONFIG)
        assert caught.value.code == "run-exists"
        assert read_run(path).name == "faster"
        RunDirectory.open(path).close()

    def test_a_new_path_is_never_one_that_is_there(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        made = set()
        for _ in range(3):
            new = new_path(CONFIG)
            assert new.parent.name == "runs"
            assert new.name.startswith("demo-seed3-")
            new.mkdir(parents=True)
            made.add(new)
        assert len(made) == 3


class TestStatus:
    def test_an_update_is_on_the_disk_or_nowhere(self, run, path, monkeypatch):
        run.update(cell=CellFacts(checksum="c", n_genes=3))
        assert read_run(path) == run.record
        before = (path / "run.json").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            for write in (lambda: run.update(limits="x"), lambda: run.end(Status.finished)):
                with pytest.raises(StoreError, match="No space left"):
                    write()
        assert (path / "run.json").read_bytes() == before
        assert run.record.limits is None

    @pytest.mark.parametrize("status", [Status.finished, Status.failed, Status.interrupted])
    def test_an_attempt_ends_once(self, run, path, status):
        run.end(status, limits="x")
        record = read_run(path)
        assert record.status is record.attempts[0].status is status
        assert record.ended == record.attempts[0].ended is not None
        assert record.limits == "x"
        with pytest.raises(RuntimeError):
            run.end(Status.finished)
        assert read_run(path) == record

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
        with pytest.raises(type(error)), RunDirectory.create(path, CONFIG):
            raise error
        assert (read_run(path).status, read_run(path).error) == (status, said)
        RunDirectory.open(path).close()

    @pytest.mark.parametrize("error", [ValueError("shapes differ"), None])
    def test_a_full_disk_at_the_end_does_not_hide_an_error(self, path, monkeypatch, error):
        def ending():
            with RunDirectory.create(path, CONFIG):
                monkeypatch.setattr(os, "replace", full)
                if error is not None:
                    raise error

        with pytest.raises(StoreError if error is None else ValueError):
            ending()
        monkeypatch.undo()
        RunDirectory.open(path).close()

    def test_attempts_are_counted(self, run, path):
        run.end(Status.failed, error="NaN")
        run.close()
        with RunDirectory.open(path) as again:
            assert (again.attempt, again.record.status) == (0, Status.failed)
            again.resume(from_step=40, world_size=2)
            record = read_run(path)
            assert (record.status, record.error, record.ended) == (Status.running, None, None)
            again.end(Status.finished)
        record = read_run(path)
        assert [one.status for one in record.attempts] == [Status.failed, Status.finished]
        assert [one.from_step for one in record.attempts] == [0, 40]
        assert [one.world_size for one in record.attempts] == [1, 2]

    def test_after_close_nothing_is_written(self, run, path):
        run.close()
        run.close()
        before = (path / "run.json").read_bytes()
        for write in (lambda: run.update(limits="x"), lambda: run.save_config(CONFIG)):
            with pytest.raises(RuntimeError, match="the run was closed"):
                write()
        with RunDirectory.open(path):
            pass
        assert (path / "run.json").read_bytes() == before

    def test_what_is_not_a_run_is_not_opened(self, run, path, tmp_path):
        run.close()
        with pytest.raises(InputError):
            RunDirectory.open(tmp_path)
        whole = (path / "run.json").read_bytes()
        (path / "run.json").write_bytes(whole[:50])
        with pytest.raises(StoreError):
            RunDirectory.open(path)
        (path / "run.json").write_bytes(whole)
        RunDirectory.open(path).close()


TRAINS = """
import os, sys, time
from deltacell.train.config import Config
from deltacell.train.run_directory import RunDirectory
run = RunDirectory.create(sys.argv[1], Config())
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(60)
"""


class TestTwoProcesses:
    def test_the_second_is_refused_and_a_kill_lets_it_in(self, path):
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINS, path], stdout=subprocess.PIPE, text=True
        )
        worker = None
        try:
            worker = int(process.stdout.readline())
            with pytest.raises(InputError, match=rf"\(process {process.pid}\)") as caught:
                RunDirectory.open(path)
            assert caught.value.code == "run-in-use"
            process.kill()
            process.wait()
            # What it forked, such as a worker of its loader, lives on and does not keep the run.
            os.kill(worker, 0)
            with RunDirectory.open(path) as run:
                run.resume(from_step=7)
                killed, current = read_run(path).attempts
                assert (killed.status, killed.ended) == (Status.interrupted, None)
                assert (current.status, current.from_step) == (Status.running, 7)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            if worker is not None:
                os.kill(worker, signal.SIGKILL)

    def test_a_fork_neither_writes_nor_lets_others_in(self, run, path):
        child = os.fork()
        if child == 0:
            try:
                run.update(limits="from the fork")
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(InputError, match="another process"):
            RunDirectory.open(path)
        run.update(limits="x")

    def test_a_run_that_is_being_made_is_not_taken(self, path):
        path.mkdir(parents=True)
        lock = run_directory._Lock(path / ".lock")
        with pytest.raises(InputError, match="another process"):
            RunDirectory.create(path, CONFIG)
        lock.release()
        RunDirectory.create(path, CONFIG).close()

    def test_a_lock_whose_file_was_removed_is_not_taken(self, path, monkeypatch):
        path.mkdir(parents=True)
        flock = run_directory.fcntl.flock

        def removed_meanwhile(handle, how):
            (path / ".lock").unlink()
            flock(handle, how)

        monkeypatch.setattr(run_directory.fcntl, "flock", removed_meanwhile)
        with pytest.raises(InputError, match="another process"):
            run_directory._Lock(path / ".lock")

    def test_a_file_system_without_locks_is_warned_of(self, path, monkeypatch):
        def none(*_):
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(run_directory.fcntl, "flock", none)
        with pytest.warns(UserWarning, match="no locks"):
            RunDirectory.create(path, CONFIG).close()
        monkeypatch.undo()
        monkeypatch.setattr(os, "write", full)
        RunDirectory.open(path).close()


class TestTheCommit:
    @pytest.fixture
    def package(self, tmp_path):
        package = tmp_path / "src" / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v1"]):
            self.git(tmp_path, *words)
        return package

    def git(self, folder, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", folder, *identity, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def test_it_is_that_of_the_checkout(self, package, tmp_path, monkeypatch):
        head = self.git(package, "rev-parse", "HEAD")
        assert commit(package) == head
        (package / "__init__.py").write_text("x = 1")
        assert commit(package) == f"{head}-dirty"
        # A package that is installed below another checkout is not part of it.
        installed = package.parent / "venv" / "deltacell"
        installed.mkdir(parents=True)
        (installed / "__init__.py").write_text("")
        assert commit(installed) is None
        assert commit(tmp_path / "nowhere") is None
        monkeypatch.setenv("PATH", "")
        assert commit(package) is None
        assert deltacell.__path__[0] == str(run_directory.Path(run_directory.__file__).parents[1])


class TestTheConfig:
    def test_what_does_not_change_what_is_learned_may_differ(self, trained):
        given_ = ["trainer.epochs=30", "trainer.patience=null", "profiler.window=[1,2,3,4]"]
        found = resumed_config(trained, given_)
        assert (found.trainer.epochs, found.profiler.window) == (30, [1, 2, 3, 4])

    @pytest.mark.parametrize(
        ("override", "code"),
        [
            *((f"{key}=1", "cannot-change") for key in ("optimizer.lr", "seed", "trainer.ema")),
            ("trainer.epochs", "cannot-change"),
            ("trainer.epochs.more=1", "cannot-change"),
            ("~trainer.epochs", "cannot-change"),
            ("trainer.epochs=many", "invalid-config"),
            ("profiler.windw=[1,1,1,1]", "invalid-config"),
            ("profiler.window=[1", "invalid-config"),
            ("trainer.devices=-1", "out-of-range"),
        ],
    )
    def test_anything_else_is_refused(self, trained, override, code):
        with pytest.raises(InputError) as caught:
            resumed_config(trained, [override])
        assert caught.value.code == code

    def test_an_edit_or_damage_is_noticed(self, copy):
        file = copy / "config.yaml"
        text = file.read_text()
        lines = text.splitlines(keepends=True)
        damaged = [text.replace(key, key[:-1] + "4") for key in ("epochs: 2", "hidden: 8")]
        damaged += ["".join(lines[:kept]) for kept in range(0, len(lines), 7)]
        for content in (*(one.encode() for one in damaged), b"name: \xff\n"):
            assert content != text.encode()
            file.write_bytes(content)
            with pytest.raises(StoreError) as caught:
                resumed_config(copy)
            assert caught.value.code == "broken-seal"

    def test_a_deleted_config_is_taken_from_the_checkpoint(self, copy, run, path):
        before = resumed_config(copy)
        (copy / "config.yaml").unlink()
        assert resumed_config(copy) == before
        (path / "config.yaml").unlink()
        with pytest.raises(InputError) as caught:
            resumed_config(path)
        assert caught.value.code == "no-config"


def edited(path, old, new):
    """Change a config as a person would who also takes off the seal."""
    file = path / "config.yaml"
    text = "".join(file.read_text().splitlines(keepends=True)[:-1])
    assert old in text
    file.write_text(text.replace(old, new) + "# seal: none\n")


class TestTheMeaningOfACheckpoint:
    @pytest.mark.parametrize(
        ("old", "new", "key"),
        [
            ("lr: ", "lr: 1", "optimizer.lr"),
            ("heads: 4", "heads: 2", "model.heads"),
            ("  seed: 3", "  seed: 4", "split.seed"),
        ],
    )
    def test_another_config_is_refused_whoever_asks(self, copy, old, new, key):
        edited(copy, old, new)
        for ask in (load_run, lambda p: resume(p, resumed_config(p, ["trainer.epochs=3"]))):
            with pytest.raises(StoreError) as caught:
                ask(copy)
            assert (caught.value.code, caught.value.fields["key"]) == ("other-config", key)

    def test_what_may_change_may_be_edited_too(self, copy):
        edited(copy, "epochs: 2", "epochs: 3")
        resume(copy, resumed_config(copy))
        assert load_run(copy).is_finished

    def test_a_run_keeps_its_split(self, copy, trained, monkeypatch):
        kept = load_run(trained).data.split
        with monkeypatch.context() as patch:
            patch.setattr("deltacell.train.data.make_split", full)
            assert load_run(copy).data.split.equals(kept)
        Split.random(load_run(copy).data.screen, seed=7).save(copy / "split", overwrite=True)
        for ask in (load_run, lambda p: resume(p, resumed_config(p, ["trainer.epochs=3"]))):
            with pytest.raises(StoreError) as caught:
                ask(copy)
            assert caught.value.code == "other-split"
        shutil.rmtree(copy / "split")
        with pytest.raises(StoreError) as caught:
            load_run(copy)
        assert caught.value.code == "no-split"


class TestAKillAtTheEdges:
    def test_after_its_last_checkpoint_a_run_is_finished(self, copy):
        whole = read_run(copy)
        running = dataclasses.replace(whole.attempts[-1], status=Status.running, ended=None)
        killed = dataclasses.replace(
            whole, status=Status.running, ended=None, best=None, attempts=(running,)
        )
        write_run(copy, killed)
        assert load_run(copy).is_finished
        assert (read_run(copy).status, read_run(copy).best) == (Status.finished, whole.best)
        write_run(copy, killed)
        outcome = resume(copy, resumed_config(copy))
        assert (outcome.signal, read_run(copy).status) == (0, Status.finished)
        write_run(copy, killed)
        edited(copy, "epochs: 2", "epochs: 9")
        assert not load_run(copy).is_finished
        assert read_run(copy).status is Status.running

    @pytest.mark.parametrize("again", ["start", "resume"])
    def test_before_its_first_checkpoint_a_run_starts_from_the_beginning(
        self, small, trained, tmp_path, again
    ):
        config = small("split.seed=3")
        # As a kill leaves it: the record says running, and there is no checkpoint.
        split = load_run(trained).data.split
        RunDirectory.create(config.directory, config, split=split).close()
        with pytest.raises(InputError) as caught:
            train(dataclasses.replace(config, seed=1))
        assert caught.value.code == "run-exists"
        if again == "start":
            train(config)
        else:
            resume(tmp_path / "run", resumed_config(tmp_path / "run"))
        found, expected = (
            Checkpoints(path / "checkpoints").load("last")["model"]
            for path in (tmp_path / "run", trained)
        )
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    def test_before_its_record_a_run_starts_anew(self, small, tmp_path):
        config, path = small("trainer.epochs=1"), tmp_path / "run"
        RunDirectory.create(path, config, split=load_data(config).split).close()
        (path / "run.json").unlink()
        train(config)
        assert load_run(path).is_finished


def row(epoch, **values):
    return {"epoch": epoch, "step": 8 * (epoch + 1), **values}


class TestMetrics:
    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "metrics.csv"

    def test_columns_grow_behind_those_that_every_run_has(self, file):
        metrics = MetricsFile(file)
        assert not file.exists()
        metrics.append(row(0, train_mse=1.0, lr=0.1))
        again = MetricsFile(file)
        again.append(row(1, train_rank=2.0, validation_pearson=math.nan))
        names = [*COLUMNS, "train_mse", "train_rank", "crc32"]
        assert file.read_text().splitlines()[0] == ",".join(names)
        read = read_metrics(file)
        assert read["train_mse"].to_list() == [1.0, None]
        assert read["train_rank"].to_list() == [None, 2.0]
        assert math.isnan(read["validation_pearson"][1])

    @pytest.mark.parametrize(("step", "left"), [(7, 0), (8, 1), (23, 2), (24, 3)])
    def test_rows_after_a_step_are_dropped(self, file, step, left):
        metrics = MetricsFile(file)
        for epoch in range(3):
            metrics.append(row(epoch))
        MetricsFile(file).truncate_after(step)
        again = MetricsFile(file)
        assert [r["epoch"] for r in again.rows] == list(range(left))
        again.append(row(9))

    def test_only_the_end_of_the_last_epoch_may_come_again(self, file):
        metrics = MetricsFile(file)
        metrics.append(row(0))
        metrics.append(row(0, lr=0.1))
        assert [r["lr"] for r in MetricsFile(file).rows] == [0.1]
        for step in (8, 3):
            with pytest.raises(ValueError, match="after step 8"):
                metrics.append({"epoch": 1, "step": step})

    @pytest.mark.parametrize("at", ["fsync", "replace"])
    def test_a_full_disk_leaves_the_rows_before(self, file, monkeypatch, at):
        metrics = MetricsFile(file)
        metrics.append(row(0, train_loss=0.5))
        before = file.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, at, full)
            with pytest.raises(StoreError, match="No space left"):
                metrics.append(row(1, train_loss=0.25))
        assert file.read_bytes() == before
        metrics.append(row(1, train_loss=0.25))
        assert read_metrics(file)["train_loss"].to_list() == [0.5, 0.25]

    @pytest.mark.parametrize("old", ["0.25", "train_loss", ",crc32", "16", "\n1,"])
    def test_an_edited_file_is_refused(self, file, old):
        metrics = MetricsFile(file)
        for epoch in range(2):
            metrics.append(row(epoch, train_loss=0.25))
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, "8" if old == "16" else old[:-1] + "7"))
        with pytest.raises(InputError) as caught:
            MetricsFile(file)
        assert caught.value.code == "damaged-metrics"


names = st.text(min_size=1, max_size=8).filter(lambda n: n.isprintable() and n not in COLUMNS)
values = st.none() | st.floats() | st.integers(-9, 9)
rows = st.lists(
    st.dictionaries(names | st.sampled_from(COLUMNS[2:]), values, max_size=4), max_size=3
)


@settings(max_examples=60, deadline=None)
@given(rows=rows)
def test_metrics_are_read_bit_for_bit(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("law") / "metrics.csv"
    metrics = MetricsFile(file)
    for epoch, one in enumerate(rows):
        metrics.append(row(epoch, **one))
    read = MetricsFile(file).rows
    assert len(read) == len(rows)
    for epoch, (before, after) in enumerate(zip(rows, read, strict=True)):
        assert (after.pop("epoch"), after.pop("step")) == (epoch, 8 * (epoch + 1))
        # As text, because NaN differs from itself and -0.0 does not from 0.0.
        assert {n: repr(v) for n, v in after.items() if v is not None} == {
            n: repr(float(v)) for n, v in before.items() if v is not None
        }
