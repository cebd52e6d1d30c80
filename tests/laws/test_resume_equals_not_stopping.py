"""A run that was stopped anywhere and resumed ends with the weights of one that never was."""

import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import laws
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.record import Status, read_run
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config.compose import compose
from deltacell.train.epoch_losses import Losses
from deltacell.train.run import train
from deltacell.train.task import Prepared, Task

SMALL = (
    *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=16", "trainer.epochs=3"),
    *("trainer.threads=1", "trainer.figures_every=0", "loggers.tensorboard=false"),
    *("profiler.phases=false", "model.hidden=8", "trainer.progress=false"),
    "model.relations=[string_fusion,string_database]",
)
CASES = {
    "dango": "",
    "dango_ema_accumulate": "trainer.ema=0.9 optimizer.accumulate=3 schedule=warm_restarts "
    "schedule.period=1 data.samples_per_epoch=70",
    "hetero_cell": "model=hetero_cell model.layers=2 "
    "model.local_heads=2 model.dropout=0.3 loss=point_distribution_contrast loss.lambda_c=0.1 "
    "schedule=plateau schedule.patience=0",
}


class Killed(BaseException):
    """Stands for a kill: nothing may run after it but what the system does."""


@contextmanager
def killed(after: int) -> Iterator[None]:
    """Kill the training inside in the middle of a batch, after so many batches."""
    left = iter(range(after))
    forward = Task.forward

    def killed_forward(task: Task, prepared: Prepared) -> Losses:
        losses = forward(task, prepared)
        if next(left, None) is None:
            raise Killed
        return losses

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(Task, "forward", killed_forward)
        yield


def outcome_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the last state and the metrics, without the time they took and their place."""
    state = Checkpoints(path / "checkpoints").load("last")
    state["position"].pop("seconds")
    del state["run"]["config"]
    rows = state.pop("rows")
    # What a training continues with is what is written for people, but for empty cells.
    written = csv.DictReader((path / "metrics.csv").read_text().splitlines())
    assert [{k: float(v) for k, v in row.items() if v} for row in written] == rows
    for row in rows:
        del row["seconds"], row["samples_per_s"]
    return state, rows


@cache
def whole(case: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        train(compose([*SMALL, *CASES[case].split(), f"directory={folder}/run"]))
        return outcome_of(Path(folder) / "run")


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c != "dango" else c for c in CASES],
)
@settings(max_examples=4, deadline=None)
@given(kills=st.lists(st.integers(0, 21), min_size=1, max_size=2), every=st.integers(1, 5))
def test_resume_equals_not_stopping(case, kills: list[int], every: int):
    expected, expected_rows = whole(case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        given = [f"directory={path}", f"trainer.checkpoint_every_steps={every}"]
        config = compose([*SMALL, *CASES[case].split(), *given])
        # The same command begins and resumes.
        for after in kills:
            with killed(after):
                train(config)
                break
        if read_run(path).status is not Status.finished:
            train(config)
        state, rows = outcome_of(path)
        assert rows == expected_rows
        assert laws.bits_of(state) == laws.bits_of(expected)
        assert read_run(path).status is Status.finished
