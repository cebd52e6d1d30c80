"""All figures of an evaluation, in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.calibration import calibration
from deltacell.evaluate.density import density
from deltacell.evaluate.figures import (
    draw_calibration,
    draw_density,
    draw_relation_weights,
    draw_residuals,
)
from deltacell.evaluate.fits import check_fit
from deltacell.evaluate.relation_weights import RelationWeights
from deltacell.evaluate.residuals import residual_by_degree
from deltacell.report.figure_file import check_figure
from deltacell.screen import Screen, Split


def draw_figures(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Mapping[str, npt.ArrayLike],
    folder: Path,
    *,
    weights: Mapping[str, RelationWeights] | None = None,
    suffix: str = ".png",
) -> list[Path]:
    """Draw the figures of each predictor on the test part, and return where they are.

    ``NAME-predicted``, ``NAME-calibration`` and ``NAME-residual``; and ``NAME-relations`` where
    weights were given.

    Parameters
    ----------
    cell, screen, split
        As for `evaluate`.
    predictions
        By name, one score a test row; of several seeds choose one.
    folder
        Made where it is not there.
    weights
        The weight of each relation, by name of the model.
    suffix
        ``.png`` or ``.svg``.
    """
    check_fit(cell, screen, split)
    check_figure(folder / f"figure{suffix}")
    measured = screen.column("score").astype(np.float64)[split.test]
    genotypes = screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    drawn: list[Path] = []

    def path(name: str, what: str) -> Path:
        made = folder / f"{_file_name(name)}-{what}{suffix}"
        if made in drawn:
            raise InputError(f"two predictors would share the figure {made.name}; rename '{name}'")
        drawn.append(made)
        return made

    for name, given in predictions.items():
        predicted = np.asarray(given, dtype=np.float64)
        draw_density(
            density(predicted, measured), path(name, "predicted"), f"{name}: predicted and measured"
        )
        draw_calibration(
            calibration(predicted, measured), path(name, "calibration"), f"{name}: calibration"
        )
        draw_residuals(
            residual_by_degree(cell, genotypes, predicted, measured),
            path(name, "residual"),
            f"{name}: residual by gene degree",
        )
    for name, weight in (weights or {}).items():
        draw_relation_weights(weight, path(name, "relations"), f"{name}: weight of each relation")
    return drawn


def _file_name(name: str) -> str:
    """Return a predictor's name as a part of a file's name, which cannot leave the folder."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "predictor"
