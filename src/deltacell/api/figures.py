"""The figures of predictions that are not those of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from deltacell.base.rendering import report_function
from deltacell.cell import Cell
from deltacell.evaluation.figure_values import figure_values
from deltacell.screen import Screen, Split


def draw_figures(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Mapping[str, npt.ArrayLike],
    folder: str | os.PathLike[str],
    *,
    weights: Mapping[str, tuple[Sequence[str], npt.ArrayLike]] | None = None,
) -> list[Path]:
    """Draw the figures of each predictor on the test part, and return their paths.

    ``predictions`` has one number per row of the test part, by predictor. The figures are
    ``NAME-predicted.png``, ``NAME-calibration.png`` and ``NAME-residual.png``, and
    ``NAME-relations.png`` for ``weights``: names of relations and their weights [genes, relations].
    """
    values = figure_values(cell, screen, split, predictions)
    draw = report_function("evaluation_figures:draw_evaluation")
    paths: list[Path] = draw(values, Path(folder), weights)
    return paths
