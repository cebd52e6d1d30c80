"""Metrics for those who watch elsewhere."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deltacell.errors import MissingExtraError
from deltacell.train import loggers
from deltacell.train.callbacks import check_loggers, make_loggers
from deltacell.train.config import LoggersConfig

ROW = {"epoch": 2, "step": 10, "lr": 0.1, "train_loss": 0.5, "validation_mse": math.nan}


def test_tensorboard_has_the_numbers_at_their_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logger,) = make_loggers(LoggersConfig(), tmp_path)
    logger.begin(0, 1, 0, 5)
    logger.step(None, 3)
    logger.epoch(ROW, None, 10)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    # What is no number is left out, and where it is in the run is not a number of it.
    assert sorted(events.Tags()["scalars"]) == ["lr", "train/loss"]
    (event,) = events.Scalars("train/loss")
    assert (event.step, event.value) == (10, 0.5)


def test_nothing_is_logged_where_nothing_is_asked_for(tmp_path: Path) -> None:
    assert make_loggers(LoggersConfig(tensorboard=False), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_extra_that_is_missing_is_named_before_anything_begins(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda asked: None)
    with pytest.raises(MissingExtraError, match=rf"loggers.{name}=true(?s:.*)deltacell\[{name}\]"):
        check_loggers(LoggersConfig(**{name: True}))  # type: ignore[arg-type]
    check_loggers(LoggersConfig())


def test_the_folder_that_wandb_leaves_behind_is_no_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "wandb" in sys.modules or loggers.find_spec("wandb") is not None:
        pytest.skip("wandb is here")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError):
        check_loggers(LoggersConfig(wandb=True))


class Service(ModuleType):
    """Stands for wandb and for mlflow, and remembers what it was told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def tell(*args: Any, **options: Any) -> Service:
            self.told.append((name, args, options))
            return self

        return tell


def test_wandb_is_told_offline_and_goes_on_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service("wandb")
    monkeypatch.setitem(sys.modules, "wandb", service)
    config = LoggersConfig(tensorboard=False, wandb=True, offline=True, project="yeast")
    (logger,) = make_loggers(config, tmp_path)
    logger.epoch(ROW, None, 10)
    logger.close()
    names = [name for name, *_ in service.told]
    assert names == ["init", "log", "finish"]
    began = service.told[0][2]
    assert (began["mode"], began["project"], began["id"]) == ("offline", "yeast", tmp_path.name)
    assert began["resume"] == "allow"
    assert service.told[1][1:] == (({"lr": 0.1, "train/loss": 0.5},), {"step": 10})


def test_mlflow_is_told_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", service)
    config = LoggersConfig(tensorboard=False, mlflow=True, offline=True, project="yeast")
    (logger,) = make_loggers(config, tmp_path)
    logger.epoch(ROW, None, 10)
    logger.close()
    told = {name: args for name, args, _ in service.told}
    assert told["set_tracking_uri"] == ((tmp_path / "mlflow").absolute().as_uri(),)
    assert told["set_experiment"] == ("yeast",)
    assert told["log_metrics"] == ({"lr": 0.1, "train/loss": 0.5},)
    assert service.told[-1][0] == "end_run"
