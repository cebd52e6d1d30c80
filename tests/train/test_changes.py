"""What may differ when a run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltacell.errors import InputError
from deltacell.train.changes import resumed_config
from deltacell.train.config import Config
from deltacell.train.run_directory import RunDirectory

Small = Callable[..., Config]


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
