"""For losses that are means over samples, two processes are one with the same global batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deltacell.profile.phase_rows import read_phases
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.run import train
from deltacell.train.run_directory import MetricsFile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores here"
    ),
]
SMALL = (
    "experiment=demo",
    "data.synthetic_genotypes=150",
    "data.batch_size=13",
    "model.hidden=8",
    "trainer.epochs=2",
    "trainer.threads=1",
    "trainer.precision=64",
    "trainer.figures_every=0",
    "trainer.progress=false",
    "loggers.tensorboard=false",
)
HETERO = (
    "model=hetero_cell",
    "model.hidden=8",
    "model.relations=[physical,string_database]",
    "model.layers=2",
    "model.local_heads=2",
)
# 72 genotypes in batches of 71: the second has one, so that one of two ranks has none.
LONELY = "data.batch_size=71"
CASES = {
    "dango": ("loss=log_cosh", "optimizer.accumulate=2"),
    "dango_of_networks": ("loss=dango", "optimizer.clip=0.01", "trainer.ema=0.9", LONELY),
    "hetero_cell_dropout": (*HETERO, "loss=log_cosh", "model.dropout=0.3", LONELY),
    "hetero_cell_gathered": (
        *HETERO,
        "loss=point_distribution_contrast",
        "loss.lambda_c=0.1",
        LONELY,
    ),
}


def in_processes(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deltacell", "train", *words],
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def found(path: Path) -> tuple[dict[str, Any], list[dict[str, float | None]]]:
    return Checkpoints(path / "checkpoints").load("last"), MetricsFile(path / "metrics.csv").rows


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(tmp_path: Path, case: str) -> None:
    given = [*SMALL, *CASES[case]]
    train(compose([*given, f"directory={tmp_path / 'one'}"]))
    in_processes(*given, "trainer.devices=2", f"directory={tmp_path / 'two'}")
    one, one_rows = found(tmp_path / "one")
    two, two_rows = found(tmp_path / "two")
    assert one["position"]["step"] == two["position"]["step"]
    for name, weight in one["model"].items():
        torch.testing.assert_close(two["model"][name], weight, rtol=1e-6, atol=1e-8, msg=name)
    assert one["loader"] == two["loader"]
    if one["ema"] is not None:
        torch.testing.assert_close(two["ema"], one["ema"], rtol=1e-6, atol=1e-8)
    for first, second in zip(one_rows, two_rows, strict=True):
        assert first.keys() == second.keys()
        for name in first.keys() - {"seconds", "samples_per_s"}:
            if name == "validation_loss" and "gathered" in case:
                continue  # In a validation each rank compares its own rows.
            assert second[name] == pytest.approx(first[name], rel=1e-5, abs=1e-8), name
    phases = read_phases(tmp_path / "two" / "phases")
    assert phases["samples"].sum() == read_phases(tmp_path / "one" / "phases")["samples"].sum()


def test_an_epoch_that_was_stopped_has_the_mean_loss_of_all_ranks(tmp_path: Path) -> None:
    """One rank's part of the sums is not enough to go on with."""
    given = ["loss=log_cosh", "trainer.devices=2", "trainer.checkpoint_every_steps=2"]
    in_processes(*SMALL, *given, "trainer.epochs=1", f"directory={tmp_path / 'whole'}")
    _, expected = found(tmp_path / "whole")
    checkpoints = Checkpoints(tmp_path / "whole" / "checkpoints")
    middle = next(one for one in checkpoints.kept if one.metric is None)
    in_processes("--resume", str(tmp_path / "whole"), "--from", middle.file)
    (row,) = MetricsFile(tmp_path / "whole" / "metrics.csv").rows
    assert row["train_loss"] == pytest.approx(expected[0]["train_loss"], rel=1e-9)
    assert row["validation_mse"] == pytest.approx(expected[0]["validation_mse"], rel=1e-9)
