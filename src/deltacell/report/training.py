"""A training while it runs: its progress bar and its figures.

This module is a `deltacell.train.rendering.Rendering`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deltacell.base.arrays import AnyArray
from deltacell.report.figures import drawn, plot_learning, plot_scores
from deltacell.report.progress import TrainingBar, progress_bar

__all__ = ["draw_learning", "draw_scores", "progress_bar", "training_bar"]


def training_bar(ranks: int) -> TrainingBar:
    """Return a bar that shows the loss of a rank, which is its share, times the ranks."""
    return TrainingBar(lambda loss: ranks * float(loss))


def draw_learning(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the training loss and the validation metric of all epochs."""
    with drawn(path, 6, 3.6) as axes:
        plot_learning(rows, axes)


def draw_scores(measured: AnyArray, predicted: AnyArray, path: Path) -> None:
    """Draw the predicted against the measured scores of a validation."""
    with drawn(path, 4.6, 4.2) as axes:
        plot_scores(axes, measured, predicted)
