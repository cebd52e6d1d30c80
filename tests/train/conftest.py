"""A training small enough to be repeated."""

import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from deltacell.train.config import Config
from deltacell.train.config.compose import compose
from deltacell.train.run import train

SMALL = (
    *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=16", "model.hidden=8"),
    *("trainer.epochs=2", "trainer.threads=1", "trainer.figures_every=0", "trainer.progress=false"),
    *("loggers.tensorboard=false", "model.relations=[string_fusion,string_database]"),
)
HETERO = (
    *("model=hetero_cell", "model.hidden=8", "model.relations=[physical,string_database]"),
    *("model.layers=2", "model.local_heads=2", "loss=log_cosh"),
)
Small = Callable[..., Config]


@cache
def _composed(words: tuple[str, ...]) -> Config:
    return compose(words)


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """Configs of a training of DANGO on 150 genotypes into ``tmp_path / "run"``."""

    def make(*overrides: str, hetero: bool = False, run: str = "run") -> Config:
        config = _composed((*SMALL, *(HETERO if hetero else ()), *overrides))
        return replace(deepcopy(config), directory=str(tmp_path / run))

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs."""
    path = tmp_path_factory.mktemp("trained") / "run"
    train(compose([*SMALL, f"directory={path}", "split.seed=3"]), command=["deltacell", "train"])
    return path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))
