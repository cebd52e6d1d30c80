"""A run that was stopped anywhere and resumed ends with the weights of one that never was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.record import Status, read_run
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.run import resume, train
from deltacell.train.run_directory import MetricsFile, resumed_config

SMALL = [
    "experiment=demo",
    "data.synthetic_genotypes=150",
    "data.batch_size=16",
    "trainer.epochs=3",
    "trainer.threads=1",
    "trainer.figures_every=0",
    "loggers.tensorboard=false",
    "model.hidden=8",
]
CASES = {
    "dango": [],
    "dango_ema_accumulate": [
        "trainer.ema=0.9",
        "optimizer.accumulate=3",
        "schedule=warm_restarts",
        "schedule.period=1",
        "data.samples_per_epoch=70",
    ],
    "hetero_cell": [
        "model=hetero_cell",
        "model.relations=[physical,string_database]",
        "model.layers=2",
        "model.local_heads=2",
        "model.dropout=0.3",
        "loss=point_distribution_contrast",
        "loss.lambda_c=0.1",
        "schedule=plateau",
        "schedule.patience=0",
    ],
}
_WHOLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}


class Killed(BaseException):
    """Stands for a kill: nothing may run after it but what the system does."""


class Kill:
    """A callback that kills the run after so many batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, *_: int) -> None:
        pass

    def step(self, *_: Any) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def epoch(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass


def outcome_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [
        {k: v for k, v in row.items() if k not in ("seconds", "samples_per_s")}
        for row in MetricsFile(path / "metrics.csv").rows
    ]
    state = Checkpoints(path / "checkpoints").load("last")
    state["position"].pop("seconds")
    del state["run"]["config"]
    return state, rows


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or (a != a and b != b)


def whole(case: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if case not in _WHOLE:
        train(compose([*SMALL, *CASES[case], f"directory={folder / 'whole'}"]))
        _WHOLE[case] = outcome_of(folder / "whole")
    return _WHOLE[case]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=6, deadline=None)
@given(kills=st.lists(st.integers(0, 21), min_size=1, max_size=2), every=st.integers(1, 5))
def test_resume_equals_not_stopping(case: str, kills: list[int], every: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        expected, expected_rows = whole(case, folder)
        path = folder / "run"
        config = compose(
            [*SMALL, *CASES[case], f"directory={path}", f"trainer.checkpoint_every_steps={every}"]
        )
        for i, after in enumerate(kills):
            try:
                if i == 0:
                    train(config, tell=[Kill(after)])
                else:
                    resume(path, resumed_config(path), tell=[Kill(after)])
            except Killed:
                continue
            break
        if read_run(path).status is not Status.finished:
            resume(path, resumed_config(path))
        state, rows = outcome_of(path)
        assert rows == expected_rows
        for part in expected:
            assert same(state[part], expected[part]), part
        assert read_run(path).status is Status.finished
