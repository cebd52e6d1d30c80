"""Figures every few epochs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from deltacell.profile.phases import NoTimer
from deltacell.train.callbacks import Figures
from deltacell.train.run_directory import MetricsFile
from deltacell.train.task import Validation


def drawn(folder: Path, every: int, epochs: int, n: int, value: float | None = 0.5) -> list[str]:
    metrics = MetricsFile(folder / "metrics.csv")
    figures = Figures(folder, metrics, every, NoTimer())
    draw = np.random.default_rng(0)
    for epoch in range(1, epochs + 1):
        row = {"epoch": epoch, "step": 5 * epoch, "train_loss": 1 / epoch}
        validation = None
        if value is not None:
            row["validation_pearson"] = value
            validation = Validation(np.arange(n), draw.normal(size=n), draw.normal(size=n), 0.1)
        metrics.append(row)
        figures.begin(epoch - 1, epochs, 0, 5)
        figures.step(None, 3)
        figures.epoch(row, validation, 5 * epoch)
    figures.close()
    if not (folder / "figures").exists():
        return []
    files = sorted((folder / "figures").iterdir())
    assert all(file.stat().st_size > 1000 for file in files)
    return [file.name for file in files]


def test_every_second_epoch(tmp_path: Path) -> None:
    assert drawn(tmp_path, 2, 5, 100) == [
        "learning.svg",
        "validation-epoch0002.png",
        "validation-epoch0004.png",
    ]


def test_none_where_0(tmp_path: Path) -> None:
    assert drawn(tmp_path, 0, 3, 10) == []


@pytest.mark.parametrize("n", [1, 2])
def test_few_genotypes_and_metrics_that_are_no_numbers(tmp_path: Path, n: int) -> None:
    assert len(drawn(tmp_path, 1, 2, n, math.nan)) == 3


def test_without_a_validation_there_is_the_learning_curve(tmp_path: Path) -> None:
    assert drawn(tmp_path, 1, 2, 0, None) == ["learning.svg"]
