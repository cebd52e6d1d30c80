"""What a run and its checkpoints mean, and what a kill leaves of them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deltacell.errors import InputError, StoreError
from deltacell.profile.record import Status, read_run, write_run
from deltacell.screen import Split
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.loaded_run import load_run
from deltacell.train.run import resume, train
from deltacell.train.run_directory import RunDirectory, resumed_config

Small = Callable[..., Config]


SMALL = (
    "experiment=demo",
    "data.synthetic_genotypes=150",
    "data.batch_size=16",
    "model.hidden=8",
    "trainer.epochs=2",
    "trainer.threads=1",
    "trainer.figures_every=0",
    "trainer.progress=false",
    "loggers.tensorboard=false",
)


@pytest.fixture
def run(small: Small) -> Path:
    with RunDirectory.create(small().directory or "", small("optimizer.lr=0.005")) as directory:
        directory.finish()
        return directory.path


def test_the_config_is_the_one_that_was_saved(run: Path, small: Small) -> None:
    assert resumed_config(run) == small("optimizer.lr=0.005")


def test_what_does_not_change_what_is_learned_may_differ(run: Path) -> None:
    given = [
        "trainer.epochs=30",
        "trainer.devices=2",
        "trainer.patience=null",
        "profiler.window=[1,2,3,4]",
        "loggers.project=mine",
    ]
    found = resumed_config(run, given)
    assert (found.trainer.epochs, found.trainer.devices) == (30, 2)
    assert found.profiler.window == [1, 2, 3, 4]
    assert found.loggers.project == "mine"


@pytest.mark.parametrize(
    "given",
    [
        "optimizer.lr=1",
        "seed=3",
        "model=dango",
        "data.batch_size=3",
        "trainer.ema=0.5",
        "trainer.epochs",
        "trainer.epochs.more=1",
        "~trainer.epochs",
        "+trainer.epochs=3",
        "schedule.name=constant",
    ],
)
def test_anything_else_is_refused(run: Path, given: str) -> None:
    with pytest.raises(
        InputError, match=r"cannot be changed when a run is resumed.*trainer.epochs"
    ):
        resumed_config(run, [given])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trainer.epochs=many", "many"),
        ("profiler.windw=[1,1,1,1]", "windw"),
        ("trainer.epochs=0", "trainer.epochs"),
        ("profiler.window=[1", "profiler.window"),
        ("trainer.devices=-1", "trainer.devices"),
    ],
)
def test_what_makes_no_sense_is_said_in_words(run: Path, given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        resumed_config(run, [given])


def test_a_run_without_its_config(run: Path, tmp_path: Path) -> None:
    (run / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"config.yaml.*cannot be read"):
        resumed_config(run)
    with pytest.raises(InputError, match="nowhere"):
        resumed_config(tmp_path / "nowhere")


class TestTheSeal:
    @pytest.mark.parametrize("key", ["lr: 0.005", "epochs: 2", "hidden: 8", "\nseed: 0"])
    def test_an_edit_is_noticed(self, run: Path, key: str) -> None:
        file = run / "config.yaml"
        assert key in file.read_text()
        file.write_text(file.read_text().replace(key, key[:-1] + "4"))
        with pytest.raises(InputError, match="edited or damaged"):
            resumed_config(run)

    def test_a_config_that_is_cut_off_is_noticed(self, run: Path) -> None:
        file = run / "config.yaml"
        lines = file.read_text().splitlines(keepends=True)
        for kept in range(len(lines)):
            file.write_text("".join(lines[:kept]))
            with pytest.raises(InputError):
                resumed_config(run)

    def test_what_is_not_text_is_the_files_fault(self, run: Path) -> None:
        (run / "config.yaml").write_bytes(b"name: \xff\n")
        with pytest.raises(InputError, match="not text in UTF-8"):
            resumed_config(run)


def edited(path: Path, old: str, new: str) -> None:
    """Change a config as a person would who also takes off the seal."""
    file = path / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    assert lines[-1].startswith("# seal")
    text = "".join(lines[:-1])
    assert old in text
    file.write_text(text.replace(old, new) + "# seal: none\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    train(compose([*SMALL, f"directory={path}", "split.seed=3"]))
    return path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


class TestTheMeaningOfACheckpoint:
    @pytest.mark.parametrize(
        ("old", "new", "key"),
        [
            ("lr: ", "lr: 1", "optimizer.lr"),
            ("heads: 4", "heads: 2", "model.heads"),
            ("precision: ", "precision: bf16 #", "trainer.precision"),
            ("  seed: 3", "  seed: 4", "split.seed"),
        ],
    )
    def test_another_config_is_refused_whoever_asks(
        self, copy: Path, old: str, new: str, key: str
    ) -> None:
        edited(copy, old, new)
        with pytest.raises(StoreError, match=key):
            load_run(copy)
        with pytest.raises(StoreError, match=key):
            resume(copy, resumed_config(copy, ["trainer.epochs=3"]))

    def test_what_may_change_may_be_edited_too(self, copy: Path) -> None:
        edited(copy, "epochs: 2", "epochs: 3")
        resume(copy, resumed_config(copy))
        assert load_run(copy).is_finished

    def test_a_deleted_config_is_taken_from_the_checkpoint(self, copy: Path) -> None:
        before = resumed_config(copy)
        (copy / "config.yaml").unlink()
        assert resumed_config(copy) == before

    def test_the_test_rows_are_those_that_the_run_keeps(
        self, copy: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = load_run(trained).data.split

        def drawn_otherwise(*_: object) -> None:
            raise AssertionError("the split was drawn again")

        monkeypatch.setattr("deltacell.train.data.make_split", drawn_otherwise)
        assert load_run(copy).data.split.equals(kept)

    def test_another_split_in_its_place_is_refused(self, copy: Path) -> None:
        screen = load_run(copy).data.screen
        Split.random(screen, seed=7).save(copy / "split", overwrite=True)
        with pytest.raises(StoreError, match="the split is not the one"):
            load_run(copy)
        with pytest.raises(StoreError, match="the split is not the one"):
            resume(copy, resumed_config(copy, ["trainer.epochs=3"]))

    def test_without_its_split_a_run_is_not_evaluated(self, copy: Path) -> None:
        shutil.rmtree(copy / "split")
        with pytest.raises(StoreError, match="does not keep its split"):
            load_run(copy)


class TestAKillAtTheEdges:
    def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished(self, copy: Path) -> None:
        whole = read_run(copy)
        running = dataclasses.replace(whole.attempts[-1], status=Status.running, ended=None)
        killed = dataclasses.replace(
            whole, status=Status.running, ended=None, best=None, attempts=(running,)
        )
        write_run(copy, killed)
        assert load_run(copy).is_finished
        assert read_run(copy).status is Status.finished
        assert read_run(copy).best == whole.best
        write_run(copy, killed)
        outcome = resume(copy, resumed_config(copy))
        assert (outcome.signal, read_run(copy).status) == (0, Status.finished)

    def test_a_run_in_training_is_left_running(self, copy: Path) -> None:
        write_run(copy, dataclasses.replace(read_run(copy), status=Status.running))
        edited(copy, "epochs: 2", "epochs: 9")
        assert not load_run(copy).is_finished
        assert read_run(copy).status is Status.running

    @pytest.mark.parametrize("again", ["start", "resume"])
    def test_before_its_first_checkpoint_a_run_starts_from_the_beginning(
        self, small: Small, trained: Path, tmp_path: Path, again: str
    ) -> None:
        config = small("split.seed=3")
        # As a kill leaves it: the record says running, and there is no checkpoint.
        RunDirectory.create(
            config.directory or "", config, split=load_run(trained).data.split
        ).close()
        other = dataclasses.replace(config, seed=1)
        with pytest.raises(InputError, match="there is a run here already"):
            train(other)
        if again == "start":
            train(config)
        else:
            resume(tmp_path / "run", resumed_config(tmp_path / "run"))
        states = [
            Checkpoints(path / "checkpoints").load("last")["model"]
            for path in (tmp_path / "run", trained)
        ]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])

    def test_before_its_record_a_run_starts_anew(self, small: Small, tmp_path: Path) -> None:
        config, path = small(), tmp_path / "run"
        RunDirectory.create(path, config, split=load_data(config).split).close()
        (path / "run.json").unlink()
        train(config)
        assert load_run(path).is_finished

    def test_a_config_of_a_person_is_no_such_beginning(self, small: Small, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text("mine")
        with pytest.raises(InputError, match=r"it holds 'config.yaml'"):
            train(small())
