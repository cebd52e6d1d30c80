from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from deltacell.errors import InputError, StoreError
from deltacell.profile.record import CellFacts, Status, Target, read_run
from deltacell.train import run_directory
from deltacell.train.config import Config, DataConfig, Mode, TrainerConfig
from deltacell.train.run_directory import RunDirectory

CONFIG = Config(name="demo", seed=3, mode=Mode.step, data=DataConfig(synthetic="demo"))


@pytest.fixture(autouse=True)
def no_git(monkeypatch):
    monkeypatch.setattr(run_directory.provenance, "commit", lambda: None)


@pytest.fixture
def path(tmp_path):
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
    def test_the_record_is_there_at_once(self, run, path):
        record = read_run(path)
        assert record == run.record
        assert record.status is Status.running
        assert (record.name, record.seed, record.mode) == ("demo", 3, "step")
        assert record.command == ("deltacell", "train")
        assert record.versions["torch"]
        assert record.ended is None
        (attempt,) = record.attempts
        assert attempt.started == record.started
        assert (attempt.status, attempt.from_step, attempt.world_size) == (Status.running, 0, 1)
        assert run.attempt == 0

    def test_the_config_comes_back(self, run):
        assert run.config() == CONFIG
        changed = Config(name="other", data=DataConfig(synthetic="demo"))
        run.save_config(changed)
        assert run.config() == changed

    def test_processes_are_those_of_the_config_or_as_given(self, tmp_path):
        config = Config(trainer=TrainerConfig(devices=2, nodes=3))
        with RunDirectory.create(tmp_path / "a", config) as run:
            assert run.record.world_size == run.record.attempts[0].world_size == 6
        with RunDirectory.create(tmp_path / "b", config, world_size=4) as run:
            assert run.record.world_size == run.record.attempts[0].world_size == 4

    def test_facts_that_are_known_are_recorded(self, tmp_path):
        with RunDirectory.create(tmp_path / "a", CONFIG, n_parameters=5, device="cpu"):
            record = read_run(tmp_path / "a")
        assert (record.n_parameters, record.device) == (5, "cpu")

    def test_an_empty_directory_is_taken(self, path):
        path.mkdir(parents=True)
        RunDirectory.create(path, CONFIG).close()
        assert read_run(path).name == "demo"

    def test_a_path_that_is_relative_stays_right_when_the_process_moves(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        with RunDirectory.create("run", CONFIG) as run:
            monkeypatch.chdir("/")
            run.update(limits="x")
        assert read_run(tmp_path / "run").limits == "x"

    def test_a_run_is_never_written_over(self, run, path):
        run.finish()
        run.close()
        before = (path / "run.json").read_bytes()
        with pytest.raises(InputError, match=rf"a run here already\n.*--resume {path}"):
            RunDirectory.create(path, CONFIG)
        assert (path / "run.json").read_bytes() == before

    def test_a_directory_that_is_not_empty_is_refused_and_left_alone(self, path):
        path.mkdir(parents=True)
        (path / "thesis.tex").write_text("x")
        with pytest.raises(InputError, match=r"is not empty; it holds 'thesis\.tex'"):
            RunDirectory.create(path, CONFIG)
        assert names_in(path) == ["thesis.tex"]

    def test_a_file_in_its_place_is_refused(self, tmp_path):
        (tmp_path / "a").write_text("x")
        with pytest.raises(InputError, match="there is a file of this name"):
            RunDirectory.create(tmp_path / "a", CONFIG)
        with pytest.raises(StoreError, match="could not be made: Not a directory"):
            RunDirectory.create(tmp_path / "a" / "b", CONFIG)

    @pytest.mark.parametrize("at", ["fsync", "replace"])
    @pytest.mark.parametrize("call", [1, 2])
    def test_a_full_disk_leaves_nothing(self, tmp_path, path, monkeypatch, at, call):
        calls, real = [], getattr(os, at)

        def sometimes(*given):
            calls.append(given)
            # Of flushes every second is that of the folder, which may fail.
            return (
                full() if len(calls) == (2 * call - 1 if at == "fsync" else call) else real(*given)
            )

        monkeypatch.setattr(os, at, sometimes)
        with pytest.raises(StoreError, match="of the run could not be written: No space left"):
            RunDirectory.create(path, CONFIG)
        assert names_in(tmp_path) == []

    def test_a_disk_that_is_full_from_the_start_leaves_nothing(self, tmp_path, path, monkeypatch):
        monkeypatch.setattr(os, "mkdir", full)
        with pytest.raises(StoreError, match="could not be made: No space left"):
            RunDirectory.create(path, CONFIG)
        assert names_in(tmp_path) == []

    def test_the_faster_of_two_wins_and_its_run_is_left_alone(self, path, monkeypatch):
        check, other = run_directory._refuse_to_clobber, []

        def then_another_is_faster(folder):
            check(folder)
            if not other:
                other.append(True)
                with RunDirectory.create(path, Config(name="faster")) as run:
                    run.finish()

        monkeypatch.setattr(run_directory, "_refuse_to_clobber", then_another_is_faster)
        with pytest.raises(InputError, match="there is a run here already"):
            RunDirectory.create(path, CONFIG)
        assert read_run(path).name == "faster"
        RunDirectory.open(path).close()


class TestUpdating:
    def test_it_is_on_the_disk_when_update_returns(self, run, path):
        run.update(cell=CellFacts(checksum="c", n_genes=3), target=Target(mean=0.5, std=2.0))
        assert read_run(path).cell.n_genes == 3
        run.update(limits="Backward.")
        assert read_run(path).target == Target(mean=0.5, std=2.0)
        assert read_run(path) == run.record

    @pytest.mark.parametrize("field", ["status", "attempts", "started", "ended", "path"])
    def test_what_has_a_method_of_its_own_is_refused(self, run, field):
        with pytest.raises(TypeError, match=f"'{field}' of a run is not for update"):
            run.update(**{field: None})

    def test_a_field_that_there_is_not_is_refused(self, run):
        with pytest.raises(TypeError, match="colour"):
            run.update(colour="blue")

    def test_a_full_disk_leaves_the_record_as_it_was(self, run, path, monkeypatch):
        before = (path / "run.json").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(StoreError, match="the record of the run could not be written"):
                run.update(limits="x")
            with pytest.raises(StoreError, match="could not be written"):
                run.finish()
        assert (path / "run.json").read_bytes() == before
        assert run.record.limits is None
        run.finish()
        assert read_run(path).status is Status.finished

    def test_folders_are_made_when_asked_for(self, run, path):
        assert run.folder("figures") == path / "figures"
        assert run.folder("figures").is_dir()
        assert run.checkpoints == path / "checkpoints"
        assert run.metrics == path / "metrics.csv"


class TestStatus:
    @pytest.mark.parametrize(
        ("end", "status"),
        [
            (lambda run: run.finish(limits="x"), Status.finished),
            (lambda run: run.fail("NaN at step 3", limits="x"), Status.failed),
            (lambda run: run.interrupt(limits="x"), Status.interrupted),
        ],
    )
    def test_an_attempt_ends_once(self, run, path, end, status):
        end(run)
        record = read_run(path)
        assert record.status is record.attempts[0].status is status
        assert record.ended == record.attempts[0].ended
        assert record.ended is not None
        assert record.limits == "x"
        assert record.error == ("NaN at step 3" if status is Status.failed else None)
        for again in (run.finish, run.interrupt):
            with pytest.raises(RuntimeError, match="no attempt at this run is running"):
                again()
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

    def test_a_block_that_ends_without_a_word_was_interrupted(self, path):
        with RunDirectory.create(path, CONFIG):
            pass
        assert read_run(path).status is Status.interrupted

    def test_what_was_said_before_an_error_stays(self, path):
        def failing():
            with RunDirectory.create(path, CONFIG) as run:
                run.interrupt()
                raise SystemExit(143)

        with pytest.raises(SystemExit):
            failing()
        assert read_run(path).status is Status.interrupted

    def test_a_full_disk_at_the_end_does_not_hide_the_error(self, path, monkeypatch):
        def failing():
            with RunDirectory.create(path, CONFIG):
                monkeypatch.setattr(os, "replace", full)
                raise ValueError("shapes differ")

        with pytest.raises(ValueError, match="shapes differ"):
            failing()
        monkeypatch.undo()
        RunDirectory.open(path).close()

    def test_a_full_disk_at_the_end_without_an_error_is_one(self, path, monkeypatch):
        def ending():
            with RunDirectory.create(path, CONFIG):
                monkeypatch.setattr(os, "replace", full)

        with pytest.raises(StoreError, match="No space left"):
            ending()
        RunDirectory.open(path).close()

    def test_a_run_that_was_closed_is_left_as_it_is(self, path):
        with RunDirectory.create(path, CONFIG) as run:
            run.close()
        assert read_run(path).status is Status.running


class TestResuming:
    def test_attempts_are_counted(self, run, path):
        run.fail("NaN")
        run.close()
        with RunDirectory.open(path) as again:
            assert again.attempt == 0
            assert again.record.status is Status.failed
            again.resume(from_step=40, world_size=2)
            assert again.attempt == 1
            record = read_run(path)
            assert record.status is Status.running
            assert (record.error, record.ended, record.world_size) == (None, None, 2)
            again.finish()
        record = read_run(path)
        assert record.status is Status.finished
        assert [one.status for one in record.attempts] == [Status.failed, Status.finished]
        assert [one.from_step for one in record.attempts] == [0, 40]
        assert [one.world_size for one in record.attempts] == [1, 2]
        assert record.started == record.attempts[0].started

    def test_opening_and_closing_changes_nothing(self, run, path):
        run.finish()
        run.close()
        before = (path / "run.json").read_bytes()
        again = RunDirectory.open(path)
        with pytest.raises(RuntimeError, match="no attempt at this run is running"), again:
            again.fail("x")
        assert (path / "run.json").read_bytes() == before

    def test_an_attempt_that_runs_cannot_be_resumed(self, run):
        with pytest.raises(RuntimeError, match="running already"):
            run.resume(from_step=1)

    def test_after_close_nothing_is_written(self, run, path):
        run.close()
        run.close()
        before = (path / "run.json").read_bytes()
        for write in (lambda: run.update(limits="x"), run.finish, lambda: run.save_config(CONFIG)):
            with pytest.raises(RuntimeError, match="the run was closed"):
                write()
        assert (path / "run.json").read_bytes() == before

    def test_what_is_not_a_run_is_not_opened(self, tmp_path):
        with pytest.raises(InputError, match="this is not a run"):
            RunDirectory.open(tmp_path)
        assert names_in(tmp_path) == []

    def test_a_damaged_record_is_said_and_the_lock_is_given_back(self, run, path):
        run.close()
        whole = (path / "run.json").read_bytes()
        (path / "run.json").write_bytes(whole[:50])
        with pytest.raises(StoreError, match="the record of the run is damaged"):
            RunDirectory.open(path)
        (path / "run.json").write_bytes(whole)
        RunDirectory.open(path).close()

    @pytest.mark.parametrize(
        "damage", [lambda file: file.unlink(), lambda f: f.write_bytes(b"\xff")]
    )
    def test_a_config_that_cannot_be_read_is_said(self, run, path, damage):
        damage(path / "config.yaml")
        with pytest.raises(InputError, match=r"config\.yaml: (cannot be read|this is not text)"):
            run.config()


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
            before = (path / "run.json").read_bytes()
            with pytest.raises(
                InputError, match=rf"another process is training into.*\(process {process.pid}\)"
            ):
                RunDirectory.open(path)
            with pytest.raises(InputError, match="there is a run here already"):
                RunDirectory.create(path, CONFIG)
            assert (path / "run.json").read_bytes() == before
            assert read_run(path).status is Status.running

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
                run.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(InputError, match="another process"):
            RunDirectory.open(path)
        run.update(limits="x")

    def test_a_run_that_is_being_made_is_not_taken(self, path, monkeypatch):
        path.mkdir(parents=True)
        lock = run_directory._Lock(path / ".lock")
        with pytest.raises(InputError, match="another process is training"):
            RunDirectory.create(path, CONFIG)
        lock.release()
        # What is left of one that never came to be is not in the way.
        RunDirectory.create(path, CONFIG).close()

    def test_a_lock_whose_file_was_removed_keeps_nobody_out_and_is_not_taken(
        self, path, monkeypatch
    ):
        path.mkdir(parents=True)
        flock = run_directory.fcntl.flock

        def removed_meanwhile(handle, how):
            (path / ".lock").unlink()
            flock(handle, how)

        monkeypatch.setattr(run_directory.fcntl, "flock", removed_meanwhile)
        with pytest.raises(InputError, match="another process is training"):
            run_directory._Lock(path / ".lock")

    def test_a_file_system_without_locks_is_warned_of(self, path, monkeypatch):
        def none(*_):
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(run_directory.fcntl, "flock", none)
        with pytest.warns(UserWarning, match="gives no locks"):
            run = RunDirectory.create(path, CONFIG)
        run.finish()
        run.close()

    def test_a_full_disk_does_not_keep_a_run_from_being_opened(self, run, path, monkeypatch):
        run.close()
        monkeypatch.setattr(os, "write", full)
        RunDirectory.open(path).close()

    def test_a_run_that_cannot_be_written_to_is_said(self, run, path, monkeypatch):
        run.close()

        def denied(*_):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", denied)
        with pytest.raises(StoreError, match="the run cannot be written to: Permission denied"):
            RunDirectory.open(path)
