"""The baselines, fitted on the training part of a split and asked about its test part."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.evaluate.side_by_side import check_fit
from deltacell.models.baselines import BASELINES, Progress, baseline
from deltacell.screen import Genotypes, Screen, Split


def baselines(
    cell: Cell,
    screen: Screen,
    split: Split,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    genotypes: Genotypes | None = None,
    progress: Progress | None = None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the predictions of baselines for the test rows, by name.

    They learn from the training rows that have a score. Those that stop early do so by the
    validation part, as a model does; of the test part they see the genotypes only.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured, over the genes of the cell.
    split
        Its parts.
    names
        Of `deltacell.models.baselines.BASELINES`; all where not given.
    seed
        Of all that is drawn.
    genotypes
        What to predict; the test rows where not given.
    progress
        Called as ``progress(what, done, total)``.
    """
    check_fit(cell, screen, split)
    chosen = list(BASELINES if names is None else names)
    made = {name: baseline(name) for name in chosen}
    validation = _part(screen, split.validation)
    if genotypes is None:
        genotypes = screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    predictions = {}
    for name, untrained in made.items():
        fitted = untrained.fit(
            cell,
            *_part(screen, split.train),
            validation=validation if len(validation[0]) else None,
            seed=seed,
            progress=_named(name, progress),
        )
        predictions[name] = fitted(cell, genotypes).score.numpy()
    return predictions


def _part(screen: Screen, rows: Ints) -> tuple[Genotypes, npt.NDArray[np.float64]]:
    score = screen.column("score").astype(np.float64)
    known = rows[np.isfinite(score[rows])]
    return screen.genotypes.take(torch.from_numpy(known)), score[known]


def _named(name: str, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None

    def report(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    return report
